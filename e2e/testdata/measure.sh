#!/bin/sh
# An observer's program: half a second after a change it sets the cell `length` of the row to the value's length.
read -r change
row=${change#*'"row":"'}
row=${row%%'"'*}
value=${change#*'"value":"'}
value=${value%%'"'*}
sleep 0.5
printf '{"put":{"row":"%s","column":"length","value":"%s"}}\n' "$row" "${#value}"
