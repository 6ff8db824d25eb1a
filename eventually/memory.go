package eventually

import "os"

// StoresVariable names a directory in memory for the stores of NATS servers that tests start. scripts/scratch sets it.
// If it is empty, the stores are in the usual directory for temporary files.
const StoresVariable = "BOXFLEET_TEST_STORES"

// InMemory keeps the temporary files of this process in memory, if scripts/scratch runs it. Call it from TestMain of a
// package whose tests start NATS servers and no containers: what a container writes to a file in memory counts against
// the container's memory limit, and is never written back.
func InMemory() {
	if dir := os.Getenv(StoresVariable); dir != "" {
		if err := os.Setenv("TMPDIR", dir); err != nil {
			panic(err)
		}
	}
}
