package bench

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 2, 9}, 3},
	} {
		if got := median(test.values); got != test.want {
			t.Errorf("median(%v) = %v, want %v", test.values, got, test.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing = %v, want NaN", got)
	}
}

func TestReadProcess(t *testing.T) {
	self, err := procfs.Self()
	if err != nil {
		t.Fatal(err)
	}
	name, u, err := readProcess(self)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(os.Args[0], name) {
		t.Errorf("name is %q, want that of %s", name, os.Args[0])
	}
	if u.Anonymous <= 0 || u.PSS < u.Anonymous {
		t.Errorf("PSS is %v and anonymous memory %v, want both, and PSS more", u.PSS, u.Anonymous)
	}
}

func TestTemplates(t *testing.T) {
	b := &baseline{values: baselineValues{Address: "192.0.2.1", Restricted: true}}
	for _, name := range []string{"cluster.yaml", "containerd.toml", "kubeadm.yaml", "kube-proxy.yaml", "net-conf.json", "Corefile"} {
		if _, err := b.render(name, b.values); err != nil {
			t.Errorf("render %s: %v", name, err)
		}
	}
}

func TestPercentile(t *testing.T) {
	values := make([]float64, 500)
	for i := range values {
		values[len(values)-1-i] = float64(i)
	}
	if got := percentile(values, 0.99); got != 495 {
		t.Errorf("the 99th percentile of 0 to 499 is %v, want 495", got)
	}
	if got := percentile([]float64{7}, 0.99); got != 7 {
		t.Errorf("the 99th percentile of 7 is %v", got)
	}
}

func TestNetworkTable(t *testing.T) {
	report := &networkReport{Rounds: map[string]map[string][]wayResult{"vxlan": {
		wayLink: {{BytesPerSecond: 5e8}, {BytesPerSecond: 2.5e9}, {BytesPerSecond: 2.5e9}},
		wayPod:  {{BytesPerSecond: 1.25e9}},
	}}}
	table := report.Table()
	for _, want := range []string{"link    20.0  1.00", "pod to pod    10.0  0.50"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

func TestDatastoresTable(t *testing.T) {
	report := &datastoresReport{Steps: map[string][]datastoreStep{}}
	for n, size := range datastoreSizes {
		for m, d := range datastores {
			report.Steps[d.name] = append(report.Steps[d.name], datastoreStep{Objects: size, Creates: float64(100 * (n + 1) * (m + 1))})
		}
	}
	table := strings.Join(strings.Fields(report.Table()), " ")
	for _, want := range []string{
		"objects 1000 10000 100000 SQLite etcd ratio SQLite etcd ratio SQLite etcd ratio",
		"creates a second 100.0 200.0 2.00 200.0 400.0 2.00 300.0 600.0 2.00",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, report.Table())
		}
	}
}
