"""From a YAML file to finished stages: load, check, plan, build, run, store."""
