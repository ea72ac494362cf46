package fromk3s

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// claim returns a claim in YAML, as the documentation of k3s has it. class is a line of its spec, or empty.
func claim(name, class string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
  %s
`, name, class)
}

// user returns a pod in YAML that runs a command and then sleeps, with a claim at /data. If node is not
// empty, the scheduler puts the pod there.
func user(name, claim, node, command string) string {
	selector := ""
	if node != "" {
		selector = "nodeSelector: {kubernetes.io/hostname: " + node + "}"
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, persistentVolumeClaim: {claimName: %s}}]
  containers:
  - name: main
    image: %s
    command: [sh, -c, %q]
    readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  %s
`, name, claim, image.BusyboxName, "set -e; "+command+"; touch /tmp/ready; exec sleep 1000000", selector)
}

// kept writes in one pod and reads in the next one, and returns the name of the volume.
func (s *scenario) kept(claim, node string) string {
	s.Helper()
	s.Apply(user(claim+"-writer", claim, node, "echo kept >/data/file"))
	writer := s.Pod(claim + "-writer")
	s.Kubectl("delete", "pod", writer.Name, "--timeout=1m")
	s.Apply(user(claim+"-reader", claim, "", "grep kept /data/file"))
	if reader := s.Pod(claim + "-reader"); reader.Spec.NodeName != writer.Spec.NodeName {
		s.Errorf("the volume is on %s, and its second pod on %s", writer.Spec.NodeName, reader.Spec.NodeName)
	}
	found, err := s.Client.CoreV1().PersistentVolumeClaims(cluster.Namespace).Get(s.Context(), claim, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if chosen := found.Annotations["volume.kubernetes.io/selected-node"]; chosen != writer.Spec.NodeName {
		s.Errorf("the annotations of the claim on %s are %v", writer.Spec.NodeName, found.Annotations)
	}
	return found.Spec.VolumeName
}

// claims uses k3s's StorageClass, the default one, and classes of the user's with k3s's provisioner.
func (s *scenario) claims() {
	s.Log("local-path")
	s.Apply(claim("path", "storageClassName: local-path"))
	volume := s.kept("path", agent)
	s.Kubectl("delete", "pod/path-reader", "persistentvolumeclaim/path", "--timeout=1m")
	s.Kubectl("wait", "--for=delete", "--timeout=1m", "persistentvolume/"+volume)

	s.Log("no class: the default, which keeps to the size")
	s.Apply(claim("plain", ""))
	s.kept("plain", "")
	s.has([]string{"local"}, "persistentvolumeclaim", "plain", "-o", "jsonpath={.spec.storageClassName}")

	s.Log("a class with k3s's provisioner and a folder of its own")
	for _, host := range []*harness.Host{s.Server.Host, s.agent} {
		if err := os.MkdirAll(host.Path("/var/lib/disk"), 0o755); err != nil {
			s.Fatal(err)
		}
	}
	s.Apply(`---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disk}
provisioner: rancher.io/local-path
parameters: {nodePath: /var/lib/disk}
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Retain
` + claim("own", "storageClassName: disk"))
	s.kept("own", agent)
	var files []string
	_ = filepath.WalkDir(s.agent.Path("/var/lib/disk"), func(path string, _ os.DirEntry, _ error) error {
		files = append(files, path)
		return nil
	})
	if !strings.HasSuffix(strings.Join(files, " "), "/file") {
		s.Errorf("in the folder are %v", files)
	}

	s.Log("what the class cannot have is said at the claim")
	s.Apply(`---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: pattern}
provisioner: rancher.io/local-path
parameters: {pathPattern: "{{ .PVC.Namespace }}/{{ .PVC.Name }}"}
volumeBindingMode: WaitForFirstConsumer
` + claim("pattern", "storageClassName: pattern") + user("pattern", "pattern", agent, "true"))
	s.Told(cluster.Namespace, "pattern", "pathPattern")
	s.Kubectl("delete", "pod/pattern", "persistentvolumeclaim/pattern", "--now")

	s.Log("local-path as the default, as in k3s")
	s.Kubectl("annotate", "--overwrite", "storageclass", "local", "storageclass.kubernetes.io/is-default-class=false")
	s.Kubectl("annotate", "--overwrite", "storageclass", "local-path", "storageclass.kubernetes.io/is-default-class=true")
	s.Apply(claim("default", "") + user("default", "default", agent, "true"))
	s.Pod("default")
	s.has([]string{"local-path"}, "persistentvolumeclaim", "default", "-o", "jsonpath={.spec.storageClassName}")
}
