"""What training relies on in an environment, as checks that play real episodes; `envs.check` runs them all."""
