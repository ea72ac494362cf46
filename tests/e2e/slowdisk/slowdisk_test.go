// Package slowdisk runs kedge with its database on a disk that is as slow as an SD card: 1 MB/s and
// 20 syncs per second.
package slowdisk

import (
	"os"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/scarce"
)

// durationVariable changes how long the test runs. 60m, for example, is an hour.
const durationVariable = "SLOWDISK"

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestSlowDisk(t *testing.T) {
	harness.Require(t)
	duration := 3 * time.Minute
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s is %q, which is not a time such as 60m", durationVariable, text)
		}
	}
	stats, err := scarce.SlowDisk(t.Context(), t, harness.NewNetwork(t), duration)
	t.Logf("%d syncs of %d KiB together took %s", stats.Syncs, stats.Bytes>>10, stats.Waited)
	if err != nil {
		t.Fatal(err)
	}
}
