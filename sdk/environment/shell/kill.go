package shell

import (
	"fmt"
	"time"
)

// killScript returns a script that ends the processes with an id in their environment. If such a process leads a
// session, the script also ends the other processes of the session. A process that dropped its variables is found
// through its session, and one that left the session through its variables. The variable has several ids in a script
// within a script, see [Script.Within].
func killScript(id string, grace time.Duration) string {
	const step = 100 * time.Millisecond // pause between two scans of the processes
	return fmt.Sprintf(`s=
files() {
	grep -ls '%s=[0-9a-f.]*%s' /proc/[0-9]*/environ
	[ -z "$s" ] || grep -lsE "[)] [^ZX] [0-9]+ [0-9]+ ($s) " /proc/[0-9]*/stat
}
list() { for f in $(files 2>/dev/null); do f=${f#/proc/}; echo "${f%%%%/*}"; done; }
pause() { sleep 0.1 2>/dev/null || sleep 1; }
for p in $(list); do
	grep -qsE "^$p [(].*[)] . [0-9]+ [0-9]+ $p " "/proc/$p/stat" && s=${s:+$s|}$p
done
l=$(list); [ -n "$l" ] && kill -s TERM $l 2>/dev/null
n=0
while l=$(list); [ -n "$l" ] && [ $n -lt %d ]; do n=$((n+1)); pause; done
n=0
while l=$(list); [ -n "$l" ] && [ $n -lt 50 ]; do kill -s KILL $l 2>/dev/null; n=$((n+1)); pause; done
[ -z "$(list)" ]
`+whole+"\n", IDVariable, id, int(grace/step))
}
