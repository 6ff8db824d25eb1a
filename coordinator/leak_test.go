package coordinator

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(coordinatorProcess); config != "" {
		runProcess(config)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed()))
}
