package bench

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestDatastores measures a server with increasing numbers of objects in each datastore that it has
// by itself. It fails only if something does not work.
func TestDatastores(t *testing.T) {
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	origin, err := newOrigin(repository)
	if err != nil {
		t.Fatal(err)
	}
	report := &datastoresReport{origin: origin, Steps: map[string][]datastoreStep{}}
	// They run one after the other, so that each has the machine, and all of its PSS, for itself.
	for _, d := range datastores {
		t.Run(d.name, func(t *testing.T) { report.Steps[d.name] = measureDatastore(t, d) })
	}
	if t.Failed() || len(report.Steps) < len(datastores) {
		return // or -run chose one
	}
	fmt.Print(report.Table())
	if err := report.write(repository); err != nil {
		t.Fatal(err)
	}
}

// measureDatastore starts a server without a node and measures it at each size.
func measureDatastore(t *testing.T, d datastore) (steps []datastoreStep) {
	host, disk := harness.NewNetwork(t).NewHostOnDisk(t, "server")
	written, err := disk.Written()
	if err != nil {
		t.Fatal(err)
	}
	server := host.StartServer(t, append([]string{"--disable-agent"}, d.args...)...)
	server.WaitLog("; kubeconfig: ") // when all is ready, the administrator's rights too
	cfg := server.RESTConfig()
	cfg.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	measured := &datastoreServer{Server: server, disk: disk, writtenAtStart: written, client: client}
	for _, size := range datastoreSizes {
		step, err := measured.step(t.Context(), size)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s: %+v\n", d.name, step)
		steps = append(steps, step)
	}
	return steps
}
