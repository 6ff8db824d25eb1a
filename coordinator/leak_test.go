package coordinator

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(coordinatorProcess); config != "" {
		runProcess(config)
	}
	eventually.InMemory()
	// Tests spend most of their time waiting for deadlines and for the ends of leases. On small machines they therefore
	// finish sooner with more parallel tests than cores. The flag -parallel overrides this number.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed()))
}
