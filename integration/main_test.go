package integration

import (
	"flag"
	"runtime"
	"testing"

	"github.com/boxfleet/boxfleet/integration/fleet"
)

// init keeps tests off the process's first thread. Some tests move their thread into a network namespace for a moment,
// and the first thread's namespace is the one that workers read for this process, which relays their engine.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	// Fleets spend most of their time waiting for timeouts and for engines. On small machines the suite therefore
	// finishes sooner with more parallel tests than cores. The flag -parallel overrides this number.
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	fleet.Main(m)
}
