#!/usr/bin/env bash
# Installs the headless browser of the tests where there is none and this user may. Without it they are left out, and counted.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do command -v "$name" >/dev/null && exit 0; done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing chromium" >&2
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } >/dev/null && exit 0
fi
echo "no browser: install chromium (apt-get install chromium)" >&2
