#!/usr/bin/env bash
# Packs the packages of a commit, the last one of a schema: ./tests/builds/pack.sh NUMBER COMMIT
# Run it before SCHEMA is raised. Tests run that build beside this one (tests/support/old_build.py).
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
git archive "$2" clients/sluicemq devices/sluicemq_devices broker/sluicemq_broker | tar -x -C "$folder"
mv "$folder"/*/sluicemq* "$folder"
rmdir "$folder"/clients "$folder"/devices "$folder"/broker
# The same bytes for the same commit, whoever packs them.
tar -c -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct "$2")" \
    sluicemq sluicemq_broker sluicemq_devices | xz -9e >"tests/builds/schema-$1.tar.xz"
