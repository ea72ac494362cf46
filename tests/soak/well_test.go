package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// recovery is how long the cluster may take until it is well again after something has happened.
const recovery = 6 * time.Minute

// wantWell waits until the cluster is well.
func (w *world) wantWell(when string) {
	w.Helper()
	harness.Eventually(w.T, recovery, "the cluster to be well "+when, func() error {
		for _, ask := range []func() error{w.nodesReady, w.podsReady, w.oneLeader, w.servicesAnswer, w.gatewayAnswers, w.statusSaysWell} {
			if err := ask(); err != nil {
				return err
			}
		}
		return nil
	})
	w.wantKeptOut(when)
	w.wantVolumesKept(when)
}

func (w *world) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.Context(), 30*time.Second)
}

func (w *world) nodesReady() error {
	ctx, cancel := w.context()
	defer cancel()
	all, err := w.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for _, n := range all.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !n.Spec.Unschedulable {
				ready++
			}
		}
	}
	if ready != len(w.nodes) {
		return fmt.Errorf("%d of %d nodes are Ready", ready, len(w.nodes))
	}
	return nil
}

// podsReady wants every workload to have its pods, and no pod to be in a state without an end. Pods that work for a while come and go.
func (w *world) podsReady() error {
	ctx, cancel := w.context()
	defer cancel()
	all, err := w.Client.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app notin (minute, burst)"})
	if err != nil {
		return err
	}
	ready := 0
	for _, pod := range all.Items {
		if pod.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s has not ended", pod.Name)
		}
		isReady := false
		for _, c := range pod.Status.Conditions {
			isReady = isReady || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if !isReady && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("pod %s is not ready: %s %s", pod.Name, pod.Status.Phase, pod.Status.Message)
		}
		if isReady {
			ready++
		}
	}
	if want := apps*replicas + 2*len(w.nodes) + 3 + 2; ready != want {
		return fmt.Errorf("%d of %d pods are ready", ready, want)
	}
	return nil
}

// oneLeader wants a server to hold the Lease of kedge, and to have renewed it.
func (w *world) oneLeader() error {
	ctx, cancel := w.context()
	defer cancel()
	lease, err := w.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, "kedge", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return errors.New("no server is elected")
	}
	if age := time.Since(lease.Spec.RenewTime.Time); age > time.Minute {
		return fmt.Errorf("%s is elected, and renewed that %s ago", *lease.Spec.HolderIdentity, age.Round(time.Second))
	}
	return nil
}

// servicesAnswer asks each Service from a pod that may reach all.
func (w *world) servicesAnswer() error {
	script := fmt.Sprintf("for n in $(seq 0 %d); do wget -q -T 5 -O /dev/null http://web-$n/ || echo web-$n; done", apps-1)
	output, err := w.TryKubectl("", "exec", "deployment/client", "--", "sh", "-c", script)
	if err == nil && output != "" {
		err = fmt.Errorf("these Services do not answer: %s", strings.Join(strings.Fields(output), ", "))
	}
	return err
}

// gatewayAnswers asks the gateway at each node.
func (w *world) gatewayAnswers() error {
	for _, n := range w.nodes {
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: w.outside.DialContext, DisableKeepAlives: true}}
		response, err := client.Get("http://" + n.Address.String() + "/")
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("the gateway at %s answers %s", n.Name, response.Status)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// statusSaysWell asks `kedge status` on each node.
func (w *world) statusSaysWell() error {
	for _, n := range w.nodes {
		ctx, cancel := w.context()
		output, err := n.Kedge(ctx, "status").CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("kedge status on %s: %w: %s", n.Name, err, output)
		}
	}
	return nil
}

// wantKeptOut wants that no stranger has ever reached a pod that the policy keeps from them.
func (w *world) wantKeptOut(when string) {
	w.Helper()
	if text, err := os.ReadFile(filepath.Join(w.evidence, "reached")); err == nil {
		w.Errorf("%s strangers have reached a pod that a policy keeps from them:\n%s", when, text)
	}
}

// wantVolumesKept wants that what pods have written to their volumes is there.
func (w *world) wantVolumesKept(when string) {
	w.Helper()
	for n := range 3 {
		pod := fmt.Sprint("kept-", n)
		output, err := w.TryKubectl("", "exec", pod, "--", "cat", "/data/count")
		if err != nil {
			w.Logf("the volume of %s %s: %v", pod, when, err)
			continue
		}
		count, err := strconv.Atoi(output)
		if err != nil || count < w.counts[pod] {
			w.Errorf("%s the volume of %s has the count %q, and had %d", when, pod, output, w.counts[pod])
		}
		w.counts[pod] = max(w.counts[pod], count)
	}
}
