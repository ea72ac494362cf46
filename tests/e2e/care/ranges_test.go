package care

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestNodeRanges has more nodes than cluster-cidr has ranges. The nodes are only objects.
func TestNodeRanges(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	server := harness.NewNetwork(t).NewHost(t, "server-1").StartServer(t, "--disable-agent", "--cluster-cidr=10.42.0.0/22")
	waitReady(t, server)
	nodes := server.Client().CoreV1().Nodes()
	for n := range 10 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", n)}}
		if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	with := func() (names []string) {
		list, err := nodes.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range list.Items {
			if strings.HasSuffix(node.Spec.PodCIDR, "/25") {
				names = append(names, node.Name)
			}
		}
		return names
	}
	harness.Eventually(t, patience, "a /25 for each of eight nodes, and tries for the others", func() error {
		// Upstream counts the attempts for each node in these Events.
		events, err := server.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=CIDRNotAvailable"})
		if err != nil {
			return err
		}
		var tries int32
		for _, event := range events.Items {
			tries += max(event.Count, 1)
		}
		if got := with(); len(got) != 8 || tries < 8 {
			return fmt.Errorf("%v have one, and there were %d tries", got, tries)
		}
		return nil
	})
	log := server.Log()
	if said := strings.Count(log, "gets no addresses for its pods"); said != 1 || !strings.Contains(log, "kube-controller-manager-arg: node-cidr-mask-size=26") {
		t.Errorf("it was said %d times", said)
	}
	if errors := strings.Count(log, "no remaining CIDRs left"); errors != 1 {
		t.Errorf("upstream's message is there %d times", errors)
	}

	t.Log("a node is deleted")
	if err := nodes.Delete(t.Context(), with()[0], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, "another node to have its range", func() error {
		if got := with(); len(got) != 8 {
			return fmt.Errorf("%v have one", got)
		}
		return nil
	})
}
