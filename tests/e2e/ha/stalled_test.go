package ha

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/member"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

// stall is how long disks do not answer: three times the renewal deadline of the Lease, and less
// than the time after which nodes count as dead.
const stall = 30 * time.Second

// elsewhere is the namespace of pods that are started later than those that must keep running.
const elsewhere = "kube-public"

// TestStalledDisk stalls the disk under etcd, first of the leader and then of all three servers. The
// controllers and the scheduler stop and come back. Everything else keeps running.
func TestStalledDisk(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	hosts := three(t, network)
	disks := map[string]*slowfs.Disk{}
	for _, host := range hosts {
		disk := slowfs.Mount(t, host, "/var/lib/kedge/server/db", slowfs.Limits{})
		t.Cleanup(disk.Resume)
		disks[host.Name] = disk
	}
	servers := cluster.Gather(t, hosts...)
	c := cluster.Of(t, servers[0])
	for _, host := range hosts {
		c.RunWeb("web-"+host.Name, host.Name)
	}
	before := c.Containers()
	states, runtimes := map[string]string{}, map[string][]string{}
	for _, server := range servers {
		states[server.Host.Name], runtimes[server.Host.Name] = state(t, server), shims(t, server)
	}
	unchanged := func() {
		t.Helper()
		for _, server := range servers {
			server.WaitReady()
			if now := state(t, server); now != states[server.Host.Name] {
				t.Errorf("%s is\n%s\nand was\n%s", server.Host.Name, now, states[server.Host.Name])
			}
			now := shims(t, server)
			for _, shim := range runtimes[server.Host.Name] {
				if !slices.Contains(now, shim) {
					t.Errorf("the shims of %s are %v, and were %v", server.Host.Name, now, runtimes[server.Host.Name])
				}
			}
		}
		c.WantSameContainers(before)
	}

	t.Log("the disk of the server that leads etcd and runs the controllers and the scheduler")
	one := holder(t, servers...)
	member.Lead(t, one, servers...)
	others := without(one, servers)
	began := time.Now()
	disks[one.Host.Name].Stall()
	write(t, others[0].Client(), "meanwhile")
	time.Sleep(time.Until(began.Add(stall)))
	disks[one.Host.Name].Resume()
	reads(t, one.Client(), "meanwhile")
	deploys(c, "after-one")
	unchanged()

	t.Log("the disks of all servers")
	last := holder(t, servers...)
	began = time.Now()
	for _, disk := range disks {
		disk.Stall()
	}
	last.WaitLog("Lost the Lease kube-system/kedge")
	time.Sleep(time.Until(began.Add(stall)))
	for _, disk := range disks {
		disk.Resume()
	}
	for _, server := range servers {
		reads(t, server.Client(), "meanwhile")
	}
	deploys(c, "after-all")
	unchanged()
}

// state returns the process of a server, and since when its components are in their states.
func state(t *testing.T, server *harness.Server) string {
	t.Helper()
	var report status.Report
	harness.Eventually(t, patience, "all of "+server.Host.Name+" to be ready", func() error {
		output, err := server.Host.Kedge(t.Context(), "status", "--output", "json").Output()
		if err != nil {
			return err
		}
		return json.Unmarshal(output, &report)
	})
	text := fmt.Sprintln("process", report.PID)
	for _, part := range report.Components {
		text += fmt.Sprintln(part.Name, part.State, "since", part.Since)
	}
	return text
}

// shims returns the processes that keep the containers on a server.
func shims(t *testing.T, server *harness.Server) []string {
	t.Helper()
	output, err := server.Host.Command(t.Context(), harness.Busybox(t), "pidof", "containerd-shim-runc-v2").Output()
	if err != nil {
		t.Error(err)
	}
	return strings.Fields(string(output))
}

// deploys checks that the controllers and the scheduler work.
func deploys(c *cluster.Cluster, name string) {
	c.Helper()
	deployments := c.Client.AppsV1().Deployments(elsewhere)
	labels := map[string]string{"app": name}
	_, err := deployments.Create(c.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image.TestserverName, Args: []string{"serve", cluster.WebPort}}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	c.Eventually("a deployment to run", func() error {
		deployment, err := deployments.Get(c.Context(), name, metav1.GetOptions{})
		if err == nil && deployment.Status.AvailableReplicas == 0 {
			err = errors.New("the pods are not ready")
		}
		return err
	})
}
