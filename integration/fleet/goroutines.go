package fleet

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// goroutinesWithin is the time limit for goroutines to end after the last test.
const goroutinesWithin = 10 * time.Second

// ours matches a stack line of a function, or of the creator of a goroutine, in this module or in the NATS client.
var ours = regexp.MustCompile(`(?m)^(created by )?github\.com/(boxfleet/boxfleet|nats-io/nats\.go)[./]`)

// checked runs the tests. If they pass, it fails the run if goroutines of Boxfleet or of NATS clients are left.
func checked(run func() int) int {
	code := run()
	if code != 0 {
		return code
	}
	left := goroutines()
	for deadline := time.Now().Add(goroutinesWithin); len(left) > 0 && time.Now().Before(deadline); left = goroutines() {
		time.Sleep(50 * time.Millisecond)
	}
	if len(left) == 0 {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%d goroutines are left %s after the tests:\n\n%s\n", len(left), goroutinesWithin,
		strings.Join(left, "\n\n"))
	return 1
}

// goroutines lists the stacks of Boxfleet's goroutines. It leaves out the goroutine that runs the tests and the
// goroutine that starts processes, which never ends.
func goroutines() (found []string) {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if ours.MatchString(stack) && !strings.Contains(stack, "/integration/fleet.Main(") &&
			!strings.Contains(stack, "/integration/child.init") {
			found = append(found, stack)
		}
	}
	return found
}
