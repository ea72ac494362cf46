package bench

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestPodStart prints what happens while a pod starts, and how long single pods take.
func TestPodStart(t *testing.T) {
	harness.Require(t)
	report := startReport(t)
	for _, system := range systems() {
		t.Run(system, func(t *testing.T) {
			i := newInstallation(t, report, system, 0)
			if _, err := observe(i.ctx, i.host, i.kubeconfig, i.start(t)); err != nil {
				t.Fatal(err)
			}
			client, err := connect(i.ctx, i.host, i.kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(report.Options.Settle)
			seconds, err := startSingly(i.ctx, client)
			if err != nil {
				t.Fatal(err)
			}
			ends, err := seeEnds(i.ctx, i.host, client)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("%s: a pod is Ready after %.3f s, and the end of a container is seen after %.3f s (medians of %d)\n", system, seconds, ends, singlePods)
			if err := tracePod(i.ctx, client, singlePods, os.Stdout); err != nil {
				t.Fatal(err)
			}
		})
	}
}
