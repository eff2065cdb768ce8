#!/usr/bin/env bash
# Fetch the dashboard's three libraries from npm into src/mint/watch/dashboard/assets/vendor, with their
# licences. Run it to change a version; users never need it.
set -euo pipefail
cd "$(dirname "$0")/.."

UPLOT=1.6.32
PREACT=11.2.0
HTM=3.1.1

target=$PWD/src/mint/watch/dashboard/assets/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

unpack() { # NAME VERSION
  mkdir "$1"
  npm pack --silent "$1@$2" > /dev/null
  tar -xzf "$1-$2.tgz" -C "$1" --strip-components=1
}
unpack uplot "$UPLOT"
unpack preact "$PREACT"
unpack htm "$HTM"

mkdir -p "$target"
cp uplot/dist/uPlot.esm.js "$target/uplot.js"
cp uplot/dist/uPlot.min.css "$target/uplot.css"
cp preact/dist/preact.mjs "$target/preact.js"
cp preact/hooks/dist/hooks.mjs "$target/hooks.js"
cp htm/dist/htm.module.js "$target/htm.js"
cp uplot/LICENSE "$target/uplot.LICENSE.txt"
cp preact/LICENSE "$target/preact.LICENSE.txt"
cp htm/LICENSE "$target/htm.LICENSE.txt"
# A browser knows no package names, and no source maps are shipped.
sed -i 's#from *"preact"#from"./preact.js"#g' "$target/hooks.js"
sed -i '/^\/\/# sourceMappingURL=/d' "$target"/*.js
cat > "$target/VERSIONS.txt" <<EOF
uplot $UPLOT
preact $PREACT
htm $HTM
EOF
echo "Wrote $target"
