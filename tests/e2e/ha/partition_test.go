package ha

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
)

// refusalPatience limits how long a server may take to say that it cannot answer.
const refusalPatience = 30 * time.Second

// TestPartition cuts off the server that leads in all respects. It must refuse writes and reads and say
// why, except reads that may be stale. The other servers continue, and in the end all have the same
// data.
func TestPartition(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	servers := cluster.Gather(t, network.NewHost(t, "server-1"), network.NewHost(t, "server-2"), network.NewHost(t, "server-3"))
	alone := holder(t, servers...)
	member.Lead(t, alone, servers...)
	others := without(alone, servers)
	lease := follow(t, others...)
	write(t, alone.Client(), "before")
	_, took := lease.passes(alone, alone.Host.CutLink)
	t.Logf("another server led %s after %s was cut off", took.Round(time.Millisecond), alone.Host.Name)
	write(t, others[0].Client(), "by-one")
	write(t, others[1].Client(), "by-another")
	alone.WaitLog("Lost the Lease kube-system/kedge")

	configMaps := alone.Client().CoreV1().ConfigMaps("default")
	ctx, cancel := context.WithTimeout(t.Context(), refusalPatience)
	defer cancel()
	_, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "by-it-alone"}}, metav1.CreateOptions{})
	refuses(t, "a write", err)
	_, err = configMaps.Get(ctx, "before", metav1.GetOptions{})
	refuses(t, "a read", err)
	_, err = configMaps.List(ctx, metav1.ListOptions{})
	refuses(t, "a list", err)
	old, err := configMaps.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil || len(old.Items) == 0 {
		t.Errorf("a list that may be old gave %v, %v", old, err)
	}

	alone.Host.HealLink()
	for _, name := range []string{"before", "by-one", "by-another"} {
		reads(t, alone.Client(), name)
	}
	for _, server := range servers {
		if _, err := server.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "by-it-alone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("what the server that was cut off refused is at %s: %v", server.Host.Name, err)
		}
	}
	nodeReady(t, alone.Client(), alone.Host.Name)
	member.WaitVoters(t, alone, "server-1", "server-2", "server-3")
}

// refuses checks that there is an error and that it says what is wrong.
func refuses(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "of 3 members with a vote, 1 answer and 2 are needed") {
		t.Errorf("%s at the server that is cut off ended with %v", what, err)
	}
}
