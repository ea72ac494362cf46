package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// class returns a StorageClass of kedge's driver in YAML. fields are further lines, such as
// reclaimPolicy: Retain.
func class(name string, parameters string, fields ...string) string {
	return fmt.Sprintf(`---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: local.kedge.dev
volumeBindingMode: WaitForFirstConsumer
parameters: %s
%s
`, name, parameters, strings.Join(fields, "\n"))
}

// TestClaims tries every kind of claim and volume.
func TestClaims(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	s := start(t, harness.NewNetwork(t))
	on := func(t *testing.T) *storage {
		return &storage{&cluster.Cluster{T: t, Server: s.Server, Client: s.Client}, s.disk}
	}

	t.Run("default class", func(t *testing.T) {
		s := on(t)
		s.Apply(claim{name: "waiting", size: "64Mi"}.yaml())
		s.pendingWith("waiting", "waiting for first consumer")
		s.Apply(pod{name: "first", claims: []string{"waiting"}, before: "echo kept >/waiting/file"}.yaml())
		s.Pod("first")
		volume := s.volumeOf("waiting")
		if volume.Spec.StorageClassName != "local" || volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
			t.Errorf("the volume's class is %s, and it would be %sd", volume.Spec.StorageClassName, volume.Spec.PersistentVolumeReclaimPolicy)
		}
		s.removed("pod/first")
		s.Apply(pod{name: "second", claims: []string{"waiting"}}.yaml())
		s.Pod("second")
		s.has("second", "/waiting/file", "kept")
	})

	t.Run("generic ephemeral volume", func(t *testing.T) {
		s := on(t)
		s.Apply(pod{name: "ephemeral", ephemeral: "64Mi", before: "echo gone >/scratch/file"}.yaml())
		s.Pod("ephemeral")
		volume := s.volumeOf("ephemeral-scratch")
		s.removed("pod/ephemeral")
		s.gone(volume.Name)
	})

	t.Run("subPath", func(t *testing.T) {
		s := on(t)
		s.Apply(claim{name: "whole", size: "64Mi"}.yaml() + pod{name: "whole", claims: []string{"whole"}, before: "mkdir -p /whole/a/b; echo below >/whole/a/b/file; ln -s / /whole/out"}.yaml())
		s.Pod("whole")
		part := strings.ReplaceAll(pod{name: "part", claims: []string{"whole"}}.yaml(), "mountPath: /whole", "mountPath: /part, subPath: a/b")
		s.Apply(part)
		s.Pod("part")
		s.has("part", "/part/file", "below")
		out := strings.ReplaceAll(pod{name: "out", claims: []string{"whole"}}.yaml(), "mountPath: /whole", "mountPath: /part, subPath: out/etc")
		s.Apply(out)
		s.saidOf("Pod", "out", "subPath")
	})

	t.Run("fsGroup", func(t *testing.T) {
		s := on(t)
		s.Apply(claim{name: "grouped", size: "64Mi"}.yaml() + pod{
			name: "grouped", claims: []string{"grouped"}, before: "echo mine >/grouped/file",
			spec: "securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}",
		}.yaml())
		s.Pod("grouped")
		if group := s.exec("grouped", "stat", "-c", "%u:%g", "/grouped/file"); group != "1000:2000" {
			t.Errorf("got owner %s of the file, want 1000:2000", group)
		}
	})

	t.Run("clone", func(t *testing.T) {
		s := on(t)
		s.Apply(claim{name: "original", size: "64Mi"}.yaml() + pod{name: "original", claims: []string{"original"}, before: "echo first >/original/file; sync"}.yaml())
		s.Pod("original")
		s.Apply(claim{name: "copy", size: "128Mi", source: "{kind: PersistentVolumeClaim, name: original}"}.yaml() + pod{name: "copy", claims: []string{"copy"}}.yaml())
		s.Pod("copy")
		s.has("copy", "/copy/file", "first")
		s.sized("copy", 128)
		s.exec("copy", "sh", "-c", "echo second >/copy/file")
		s.has("original", "/original/file", "first")
	})

	t.Run("access modes", func(t *testing.T) {
		s := on(t)
		s.Apply(class("shared", `{shared: "true"}`) +
			claim{name: "refused", size: "64Mi", mode: "ReadWriteMany"}.yaml() + pod{name: "refused", claims: []string{"refused"}}.yaml() +
			claim{name: "many", size: "64Mi", mode: "ReadWriteMany", class: "shared"}.yaml() +
			pod{name: "twice-1", claims: []string{"many"}}.yaml() + pod{name: "twice-2", claims: []string{"many"}}.yaml() +
			claim{name: "single", size: "64Mi", mode: "ReadWriteOncePod"}.yaml() + pod{name: "single-1", claims: []string{"single"}}.yaml())
		s.pendingWith("refused", "shared")
		s.Pod("twice-1")
		s.Pod("twice-2")
		s.exec("twice-1", "sh", "-c", "echo from-1 >/many/file")
		s.has("twice-2", "/many/file", "from-1")
		s.Pod("single-1")
		s.Apply(pod{name: "single-2", claims: []string{"single"}}.yaml())
		s.saidOf("Pod", "single-2", "ReadWriteOncePod")
	})

	t.Run("block", func(t *testing.T) {
		s := on(t)
		user := pod{name: "block", claims: []string{"block"}, before: "echo kept | dd of=/block conv=fsync"}.yaml()
		s.Apply(claim{name: "block", size: "64Mi", block: true}.yaml() +
			strings.ReplaceAll(strings.ReplaceAll(user, "volumeMounts", "volumeDevices"), "mountPath", "devicePath"))
		s.Pod("block")
		if size := s.exec("block", "blockdev", "--getsize64", "/block"); size != fmt.Sprint(64*mebibyte) {
			t.Errorf("the device has %s bytes", size)
		}
		if text := s.exec("block", "head", "-c", "4", "/block"); text != "kept" {
			t.Errorf("the device begins with %q", text)
		}
	})

	t.Run("another place, kept", func(t *testing.T) {
		s := on(t)
		const place = "/var/lib/kedge/other-disk"
		s.Apply(class("other", "{baseDirectory: "+place+"}", "reclaimPolicy: Retain") +
			claim{name: "placed", size: "64Mi", class: "other"}.yaml() +
			pod{name: "placed", claims: []string{"placed"}, before: "echo kept >/placed/file; sync"}.yaml())
		s.pendingWith("placed", place)
		if err := os.Mkdir(s.Server.Host.Path(place), 0o700); err != nil {
			t.Fatal(err)
		}
		s.Pod("placed")
		s.sized("placed", 64)
		volume := s.volumeOf("placed")
		if found, _ := filepath.Glob(s.Server.Host.Path(place + "/*" + volume.Name + "*")); len(found) == 0 {
			t.Errorf("the volume %s is not in %s", volume.Name, place)
		}
		s.removed("pod/placed", "pvc/placed")
		time.Sleep(settled)
		if v, err := s.Client.CoreV1().PersistentVolumes().Get(s.Context(), volume.Name, metav1.GetOptions{}); err != nil || v.Status.Phase != corev1.VolumeReleased {
			t.Errorf("the volume is %v: %v", v.Status.Phase, err)
		}
		// A user who wants to use the volume again removes its claimRef.
		s.Kubectl("patch", "pv", volume.Name, "--type=json", `--patch=[{"op": "remove", "path": "/spec/claimRef"}]`)
		s.Apply(strings.Replace(claim{name: "again", size: "64Mi", class: "other"}.yaml(), "spec: {", "spec: {volumeName: "+volume.Name+", ", 1) +
			pod{name: "again", claims: []string{"again"}}.yaml())
		s.Pod("again")
		s.has("again", "/again/file", "kept")
		s.Kubectl("patch", "pv", volume.Name, "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`)
		s.removed("pod/again", "pvc/again")
		s.gone(volume.Name)
	})

	t.Run("many at once", func(t *testing.T) { on(t).manyAtOnce() })

	t.Run("refused", func(t *testing.T) {
		s := on(t)
		for _, test := range []struct {
			name       string
			parameters string
			claim      claim
			want       []string
		}{
			{"too-large", "", claim{size: "100Gi"}, []string{"largest"}},
			{"typo", "{shard: \"true\"}", claim{}, []string{"shard"}},
			{"relative", "{baseDirectory: mnt/disk}", claim{}, []string{"baseDirectory", "absolute"}},
			{"filesystem", "{csi.storage.k8s.io/fstype: ntfs}", claim{}, []string{"ntfs"}},
			{"unlimited-block", "{enforce: none}", claim{block: true}, []string{"block"}},
			{"enforcement", "{enforce: some}", claim{}, []string{"enforce", "some"}},
		} {
			c := test.claim
			c.name = test.name
			if c.size == "" {
				c.size = "64Mi"
			}
			if test.parameters != "" {
				c.class = test.name
				s.Apply(class(c.class, test.parameters))
			}
			user := pod{name: c.name, claims: []string{c.name}}.yaml()
			if c.block {
				user = strings.ReplaceAll(strings.ReplaceAll(user, "volumeMounts", "volumeDevices"), "mountPath", "devicePath")
			}
			s.Apply(c.yaml() + user)
			s.pendingWith(c.name, test.want...)
		}
	})

	s.removed("pods", "--all")
	s.removed("pvc", "--all")
	s.clean()

	t.Run("leftover", func(t *testing.T) {
		s := on(t)
		const stray = storagePath + "/pvc-stray"
		if err := os.Mkdir(s.Server.Host.Path(stray), 0o700); err != nil {
			t.Fatal(err)
		}
		if status := s.status(); !strings.Contains(status, stray) {
			t.Errorf("the status does not name %s:\n%s", stray, status)
		}
		if err := os.Remove(s.Server.Host.Path(stray)); err != nil {
			t.Fatal(err)
		}
		s.clean()
	})
}

// manyAtOnce makes a dozen claims with their pods. The scheduler chooses the node of each claim while upstream's
// controller writes to it, too. No write may fail, because the next attempt would come only after 15 s.
func (s *storage) manyAtOnce() {
	s.Helper()
	const many = 12
	var objects strings.Builder
	for i := range many {
		name := fmt.Sprint("many-", i)
		objects.WriteString(claim{name: name, size: "16Mi"}.yaml() + pod{name: name, claims: []string{name}}.yaml())
	}
	s.Apply(objects.String())
	for i := range many {
		s.Pod(fmt.Sprint("many-", i))
	}
	events, err := s.Client.CoreV1().Events(namespace).List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=PersistentVolumeClaim"})
	if err != nil {
		s.Fatal(err)
	}
	for _, event := range events.Items {
		if event.Reason == "ProvisioningFailed" && strings.Contains(event.Message, "has been modified") {
			s.Errorf("claim %s: %s", event.InvolvedObject.Name, event.Message)
		}
	}
}
