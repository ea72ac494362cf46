package run

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestMetadata lets a pod, and a pod in the network of its node, ask at the addresses where clouds give a machine its
// credentials. These addresses must not answer. The addresses next to them must answer.
func TestMetadata(t *testing.T) {
	m := newMachine(t)
	archive := m.testserver()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	answers := map[string]bool{
		"169.254.169.254": false, "168.63.129.16": false, "100.100.100.200": false, "192.0.0.192": false,
		"fd00:ec2::254": false, "fd20:ce::254": false, "fd00:c1::a9fe:a9fe": false, "fd00:42::42": false,
		"168.63.129.17": true, "100.100.100.201": true, "192.0.0.193": true,
	}
	m.begin(m.program(image.TestserverProgram(repository), "serve", "8000"))
	for address := range answers {
		if output, err := m.Command(t.Context(), "ip", "address", "add", address, "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("add address %s: %v: %s", address, err, output)
		}
		at := net.JoinHostPort(address, "8000")
		all = append(all, at)
		harness.Eventually(t, patience, "the machine to reach "+at, func() error {
			_, err := m.Get(at)
			return err
		})
	}
	script := `
		kubectl() { "$KEDGE_PROGRAM" kubectl "$@"; }
		kubectl run pod --image=` + image.TestserverName + ` -- sleep
		kubectl run host --image=` + image.TestserverName + ` --overrides='{"spec": {"hostNetwork": true}}' -- sleep
		kubectl wait pod/pod pod/host --for=condition=Ready --timeout=2m
		for from in pod host; do
			for at in $ALL; do
				echo "$from at $at: $(kubectl exec $from -- /testserver fetch "http://$at/" 2>&1 | tr '\n' ' ')"
			done
		done`
	s := m.command("run", "--image", archive, "--", "bash", "-c", script)
	s.Env = append(s.Env, "KEDGE_PROGRAM="+os.Getenv("KEDGE_BINARY"), "ALL="+strings.Join(all, " "))
	m.begin(s).want(t, 0)
	for address, want := range answers {
		for _, from := range []string{"pod", "host"} {
			start := fmt.Sprintf("%s at %s: ", from, net.JoinHostPort(address, "8000"))
			_, rest, found := strings.Cut(s.output.String(), start)
			said, _, _ := strings.Cut(rest, "\n")
			if !found || strings.Contains(said, "hostname=") != want {
				t.Errorf("%sgot %q. Is an answer wanted: %t", start, said, want)
			}
		}
	}
}
