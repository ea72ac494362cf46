// Package small runs kedge in a memory cgroup of 256 MB.
package small

import (
	"os"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/scarce"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestSmall checks that kedge, its shims and helpers fit, including text and page cache, with
// running pods and an answering API.
func TestSmall(t *testing.T) {
	harness.Require(t)
	peak, err := scarce.Small(t.Context(), t, harness.NewNetwork(t), time.Minute)
	t.Logf("the most memory that was counted is %.0f MiB", peak/(1<<20))
	if err != nil {
		t.Fatal(err)
	}
}
