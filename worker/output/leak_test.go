package output

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/boxfleet/boxfleet/eventually"
)

func TestMain(m *testing.M) {
	eventually.InMemory()
	goleak.VerifyTestMain(m, goleak.Cleanup(eventually.DescriptorsClosed()))
}
