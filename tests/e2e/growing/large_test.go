package growing

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// notes is a kind without bounds of its own on how large an object is.
const notes = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.test.kedge.dev}
spec:
  group: test.kedge.dev
  scope: Namespaced
  names: {plural: notes, singular: note, kind: Note}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// TestLargeObjects makes an object of 1.8 MB with SQLite, which is more than an etcd takes by default. After the move to
// embedded etcd the object can be changed and deleted. A larger object than 2 MiB is refused before and after.
func TestLargeObjects(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	server := host.StartServer(t, "--disable-agent")
	server.WaitAPI()
	c := cluster.Of(t, server)
	c.Apply(notes)
	c.Kubectl("wait", "--for=condition=Established", "crd/notes.test.kedge.dev", "--timeout="+cluster.Patience.String())
	create := func(name string, size int) error {
		_, err := c.TryKubectl(fmt.Sprintf("{apiVersion: test.kedge.dev/v1, kind: Note, metadata: {name: %s}, text: %s}", name, strings.Repeat("x", size)), "create", "-f", "-")
		return err
	}
	refused := func() {
		t.Helper()
		if err := create("too-large", 2_200_000); err == nil || !strings.Contains(err.Error(), "2097152") {
			t.Errorf("create an object of 2.2 MB: got the error %v, want one that names the limit", err)
		}
	}
	c.Eventually("the kind to be served", func() error { return create("large", 1_800_000) })
	refused()
	server.Terminate()

	grown := host.StartServer(t, "--disable-agent", "--cluster-init")
	grown.WaitAPI()
	c = cluster.Of(t, grown)
	refused()
	c.Kubectl("label", "note/large", "changed=yes")
	if label := c.Kubectl("get", "note/large", "-o", "jsonpath={.metadata.labels.changed}"); label != "yes" {
		t.Errorf("the label of the object is %q, want yes", label)
	}
	c.Kubectl("delete", "note/large")
}
