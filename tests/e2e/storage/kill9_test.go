package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kedge-dev/kedge/tests/harness"
)

// killsVariable changes how often TestKill9 kills.
const killsVariable = "KILL9"

const (
	defaultKills = 10
	// longest is the longest time between two kills. A start takes about a fifth of it.
	longest = 20 * time.Second
	workers = 2
)

// TestKill9 kills kedge at random moments while volumes are made, mounted, written to, saved,
// expanded, restored and deleted. Each operation must continue after the next start, no data may be
// lost, and nothing may be left in the end.
func TestKill9(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	kills := defaultKills
	if text := os.Getenv(killsVariable); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s is %q, which is not a number", killsVariable, text)
		}
	}
	s := start(t, harness.NewNetwork(t))
	s.Apply(claim{name: "lasting", size: "64Mi"}.yaml() + pod{name: "lasting", claims: []string{"lasting"}, before: "echo kept >/lasting/file; sync"}.yaml())
	before := s.Pod("lasting").Status.ContainerStatuses[0].ContainerID

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var lives [workers]life
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var living sync.WaitGroup
	for i := range lives {
		lives[i] = life{storage: s, name: fmt.Sprint("worker-", i)}
		living.Go(func() { lives[i].run(ctx) })
	}
	for range kills {
		time.Sleep(time.Duration(random.Int64N(int64(longest))))
		s.Server.Kill9()
		s.Server.Start()
	}
	s.Server.WaitReady()
	stop()
	living.Wait()

	for _, life := range lives {
		t.Logf("%s: %d volumes lived and died", life.name, life.done)
		if life.fault != nil {
			t.Errorf("%s: volume %d: %s: %v", life.name, life.done, life.step, life.fault)
		}
	}
	if now := s.Pod("lasting").Status.ContainerStatuses[0].ContainerID; now != before {
		t.Errorf("the container is %s, and was %s", now, before)
	}
	s.In("lasting", "the file", func(content string) bool { return content == "kept" }, "cat", "/lasting/file")
	if t.Failed() {
		return
	}
	s.removed("pod/lasting", "pvc/lasting")
	s.clean()
	s.Server.Restart()
	s.clean()
}

// life makes one volume after the other go through all operations.
type life struct {
	*storage
	name string
	// done is how many volumes did so, step the present step of the last one, and fault its error.
	done  int
	step  string
	fault error
}

func (l *life) run(ctx context.Context) {
	for ctx.Err() == nil {
		if l.fault = l.live(fmt.Sprintf("%s-%d", l.name, l.done)); l.fault != nil {
			return
		}
		l.done++
	}
}

// live goes through the life of a volume, its snapshot, and a volume restored from that. It repeats
// each step until it succeeds, because kedge may be away.
func (l *life) live(name string) error {
	restored, saved := name+"-restored", "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: "+name+"}"
	// The pods keep writing, so they cannot end if their file system stays frozen.
	const writing = "\n(while :; do date >/%[1]s/beat; sync; sleep 0.2; done) &"
	write := pod{name: name, claims: []string{name}, before: fmt.Sprintf("[ -e /%[1]s/file ] || echo %[1]s >/%[1]s/file; sync"+writing, name)}
	again := pod{name: name, claims: []string{name}, before: fmt.Sprintf("grep -qx %[1]s /%[1]s/file"+writing, name)}
	read := pod{name: restored, claims: []string{restored}, before: fmt.Sprintf("grep -qx %s /%s/file", name, restored)}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"make it", l.apply(claim{name: name, size: "64Mi"}.yaml() + write.yaml())},
		{"mount it", l.ready(name)},
		{"save it", l.apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %[1]s}
spec: {source: {persistentVolumeClaimName: %[1]s}}
`, name))},
		{"let it grow", l.command("patch", "pvc", name, "--patch", `{"spec": {"resources": {"requests": {"storage": "128Mi"}}}}`)},
		// The snapshot may have been taken after the expansion.
		{"restore it", l.apply(claim{name: restored, size: "128Mi", source: saved}.yaml() + read.yaml())},
		{"read it", l.ready(restored)},
		// Not every kernel can expand a mounted volume.
		{"end its pod", l.command("delete", "--ignore-not-found", "--wait=false", "pod/"+name)},
		{"see that ended", l.podGone(name)},
		{"mount it again", l.apply(again.yaml())},
		{"read it again", l.ready(name)},
		{"see it grown", l.grown(name, "128Mi")},
		{"delete it", l.command("delete", "--ignore-not-found", "--wait=false", "pod/"+name, "pod/"+restored, "pvc/"+name, "pvc/"+restored, "volumesnapshot/"+name)},
		{"see it gone", l.gone(name, restored)},
	} {
		l.step = step.name
		var last error
		err := wait.PollUntilContextTimeout(context.Background(), 250*time.Millisecond, 2*patience, true, func(ctx context.Context) (bool, error) {
			last = step.do(ctx)
			return last == nil, nil
		})
		if err != nil {
			return errors.Join(err, last)
		}
	}
	return nil
}

func (l *life) apply(text string) func(context.Context) error {
	return func(context.Context) error {
		_, err := l.TryKubectl(text, "apply", "-f", "-")
		return err
	}
}

func (l *life) command(args ...string) func(context.Context) error {
	return func(context.Context) error {
		_, err := l.TryKubectl("", args...)
		return err
	}
}

func (l *life) ready(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		p, err := l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("pod %s is %s: %+v", name, p.Status.Phase, p.Status.ContainerStatuses)
	}
}

func (l *life) grown(name, size string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := l.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now := c.Status.Capacity[corev1.ResourceStorage]; now.String() != size {
			return fmt.Errorf("it has %s: %v", now.String(), c.Status.Conditions)
		}
		return nil
	}
}

func (l *life) podGone(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("the pod is there"), err)
	}
}

// gone returns nil if there are no pods and claims of these names, and no volumes that belonged to
// the claims.
func (l *life) gone(names ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, name := range names {
			if err := l.podGone(name)(ctx); err != nil {
				return err
			}
			_, err := l.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return errors.Join(errors.New("the claim is there"), err)
			}
		}
		volumes, err := l.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, volume := range volumes.Items {
			if claim := volume.Spec.ClaimRef; claim != nil && strings.HasPrefix(claim.Name, l.name+"-") {
				return fmt.Errorf("volume %s of %s is %s", volume.Name, claim.Name, volume.Status.Phase)
			}
		}
		return nil
	}
}
