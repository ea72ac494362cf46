package addons

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// manifests adds, changes and removes files.
func (s *scenario) manifests() {
	s.value("early", "a", "before the first start")

	s.Run("apply, change, prune", func(t *testing.T) {
		s := s.in(t)
		s.write("app/first.yml", configMap("one", "a: x, b: x")+configMap("two", "a: x"))
		s.write("app/second.json", `{"apiVersion": "v1", "kind": "List", "items": [
			{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "made"}},
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "three", "namespace": "made"}}]}`)
		s.write("app/notes.txt", "no manifest")
		s.value("one", "b", "x")
		s.value("two", "a", "x")
		s.write("app/first.yml", configMap("one", "a: v2"))
		s.value("one", "a", "v2")
		s.value("two", "", "")
		if found, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(s.Context(), "one", metav1.GetOptions{}); err != nil || found.Data["b"] != "" {
			t.Errorf("got %v, %v, want the ConfigMap without the key b, which was taken out of the file", found, err)
		}
		// An object that moves to another file stays the same object.
		before := s.uid("one")
		s.write("app/renamed.yaml", configMap("one", "a: z"))
		s.drop("app/first.yml")
		s.value("one", "a", "z")
		if s.uid("one") != before {
			t.Error("the object was recreated when its file was renamed")
		}
		s.Kubectl("wait", "--for=create", "--timeout=60s", "configmap/three", "--namespace=made")
		s.drop("app/second.json")
		s.Kubectl("wait", "--for=delete", "--timeout=60s", "namespace/made")
	})

	s.Run("kinds of the same file", func(t *testing.T) {
		s := s.in(t)
		s.write("kinds.yaml", `
apiVersion: example.com/v1
kind: Thing
metadata: {name: thing}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing, plural: things}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`)
		s.Eventually("the object of the new kind", func() error {
			_, err := s.TryKubectl("", "get", "things.example.com", "thing")
			return err
		})
		s.drop("kinds.yaml")
		s.Kubectl("wait", "--for=delete", "--timeout=60s", "crd/things.example.com")
	})

	s.Run("a user's fields", func(t *testing.T) {
		s := s.in(t)
		s.write("shared.yaml", configMap("shared", "mine: x, file: x"))
		s.value("shared", "file", "x")
		s.Kubectl("patch", "configmap", "shared", "--patch", `{"data": {"mine": "changed", "own": "y"}}`)
		s.write("shared.yaml", configMap("shared", "mine: z, file: z"))
		s.value("shared", "file", "z")
		s.value("shared", "mine", "changed")
		s.value("shared", "own", "y")
		s.Told("kube-system", "manifest-shared.yaml", folder+"shared.yaml", "ConfigMap default/shared", ".data.mine", "kubectl-patch", "Remove it from the file")
	})

	s.Run("broken", func(t *testing.T) {
		s := s.in(t)
		s.write("broken.yaml", configMap("broken", "a: x"))
		s.value("broken", "a", "x")
		s.write("broken.yaml", configMap("broken", "a: v2")+"---\nkind: [\n")
		s.Told("kube-system", "manifest-broken.yaml", folder+"broken.yaml", "document 2", "line", "Correct the file")
		s.write("broken.yaml", configMap("broken", "a: x")+"---\napiVersion: v1\nkind: Pod\nmetadata: {name: nothing}\nspec: {containers: []}\n")
		s.Told("kube-system", "manifest-broken.yaml", folder+"broken.yaml", "Pod default/nothing", "spec.containers: Required value", "tries again")
		// This command is in docs/add-ons.md.
		if said := s.Kubectl("get", "events", "-n", "kube-system", "--field-selector", "source=kedge-manifests"); !strings.Contains(said, "broken.yaml") {
			t.Errorf("the events are\n%s", said)
		}
		s.write("broken.yaml", configMap("broken", "a: z"))
		s.value("broken", "a", "z")
		s.Told("kube-system", "manifest-broken.yaml", "all objects of the file are applied now")
	})

	s.Run("not a file", func(t *testing.T) {
		s := s.in(t)
		path := func(name string) string { return s.Server.Host.Path(folder + name) }
		fifo := func(path string) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		fifo(path("fifo.yaml"))
		if err := os.Symlink("/dev/zero", path("device.yaml")); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", path("socket.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		s.write("beside.txt", configMap("linked", "a: x"))
		if err := os.Symlink("beside.txt", path("linked.yaml")); err != nil {
			t.Fatal(err)
		}
		for name, kind := range map[string]string{"fifo": "a FIFO", "device": "a device", "socket": "a socket"} {
			s.Told("kube-system", "manifest-"+name+".yaml", folder+name+".yaml: this is "+kind, "Correct the file")
		}
		// Other objects are applied, and files in other folders do not wait either.
		s.value("linked", "a", "x")
		const server, agent = "/var/lib/kedge/server/", "/var/lib/kedge/agent/"
		s.Server.Host.WriteFile(server+"static/charts/irregular/Chart.yaml", "apiVersion: v2\nname: irregular\nversion: 1.0.0\n")
		s.Server.Host.WriteFile(server+"static/charts/irregular/templates/none.txt", "")
		fifo(s.Server.Host.Path(server + "static/charts/irregular/templates/fifo.yaml"))
		s.write("irregular.yaml", "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: irregular, namespace: kube-system}\nspec: {chart: irregular}\n")
		s.Told("kube-system", "irregular", "templates/fifo.yaml: this is a FIFO")
		fifo(s.Server.Host.Path(agent + "images/fifo.tar"))
		s.Told("default", s.Server.Host.Name, "images/fifo.tar: this is a FIFO")
		fifo(s.Server.Host.Path(agent + "pod-manifests/fifo.yaml"))
		s.Told("default", s.Server.Host.Name, "pod-manifests/fifo.yaml: this is a FIFO")
		s.Server.Host.WriteFile(agent+"pod-manifests/static.yaml", fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: static}\n"+
			"spec: {containers: [{name: main, image: %s, args: [sleep]}]}\n", image.TestserverName))
		s.Pod("static-" + s.Server.Host.Name)
		for _, name := range []string{agent + "pod-manifests/static.yaml", agent + "pod-manifests/fifo.yaml", agent + "images/fifo.tar"} {
			if err := os.Remove(s.Server.Host.Path(name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"irregular.yaml", "device.yaml", "linked.yaml"} {
			s.drop(name)
		}
		s.value("linked", "", "")
		// fifo.yaml stays: the stop of kedge must not wait for it.
	})

	s.Run("one object in two files", func(t *testing.T) {
		s := s.in(t)
		s.write("twice-1.yaml", configMap("twice", "a: x"))
		s.value("twice", "a", "x")
		s.write("twice-2.yaml", configMap("twice", "a: v2"))
		s.Told("kube-system", "manifest-twice-2.yaml", "ConfigMap default/twice is also in twice-1.yaml")
		s.value("twice", "a", "x")
		s.drop("twice-1.yaml")
		s.write("twice-2.yaml", configMap("twice", "a: z"))
		s.value("twice", "a", "z")
	})

	s.Run("kinds of one name", func(t *testing.T) {
		s := s.in(t)
		s.write("serving.yaml", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: services.serving.knative.dev}
spec:
  group: serving.knative.dev
  names: {kind: Service, plural: services}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`)
		const core = "---\napiVersion: v1\nkind: Service\nmetadata: {name: hello}\nspec: {ports: [{port: 80}]}\n"
		knative := func(version string) string {
			return "---\napiVersion: serving.knative.dev/" + version + "\nkind: Service\nmetadata: {name: hello}\nspec: {template: {}}\n"
		}
		s.write("core.yaml", core+configMap("beside", "a: x"))
		s.write("knative.yaml", knative("v1"))
		s.Kubectl("wait", "--for=create", "--timeout=60s", "crd/services.serving.knative.dev")
		s.Kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/services.serving.knative.dev")
		s.Kubectl("wait", "--for=create", "--timeout=60s", "services.serving.knative.dev/hello")
		s.Kubectl("wait", "--for=create", "--timeout=60s", "service/hello")
		uid := s.Kubectl("get", "services.serving.knative.dev", "hello", "-o", "jsonpath={.metadata.uid}")
		// The one that is taken out of its file goes, and the other one stays as it is, also in
		// another version of its group.
		s.write("core.yaml", configMap("beside", "a: v2"))
		s.write("knative.yaml", knative("v1beta1"))
		s.value("beside", "a", "v2")
		s.Kubectl("wait", "--for=delete", "--timeout=60s", "service/hello")
		s.write("knative.yaml", knative("v1beta1")+configMap("behind", "a: x"))
		s.value("behind", "a", "x")
		if now := s.Kubectl("get", "services.serving.knative.dev", "hello", "-o", "jsonpath={.metadata.uid}"); now != uid {
			t.Errorf("Knative's Service is another object now: %s, was %s", now, uid)
		}
		s.drop("knative.yaml")
		s.Kubectl("wait", "--for=delete", "--timeout=60s", "services.serving.knative.dev/hello")
		s.drop("core.yaml")
		s.drop("serving.yaml")
		s.Kubectl("wait", "--for=delete", "--timeout=60s", "crd/services.serving.knative.dev")
	})

	s.Run("not objects", func(t *testing.T) {
		s := s.in(t)
		s.write("kustomized/kustomization.yaml", "resources: [map.yaml]\nnamePrefix: my-\n")
		s.write("kustomized/map.yaml", configMap("kustomized", "a: x"))
		s.write("generated.yaml", "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: once-}\n")
		if err := os.Symlink("/etc", s.Server.Host.Path(folder+"linked")); err != nil {
			t.Fatal(err)
		}
		s.value("kustomized", "a", "x")
		s.toldBy("kustomized/kustomization.yaml", "Ignored", "a file of kustomize", "kedge kubectl kustomize FOLDER > "+folder)
		s.toldBy("generated.yaml", "Failed", "object 1 (Job.batch)", "metadata.generateName: once-", "kedge kubectl create --filename=")
		s.toldBy("linked", "Failed", "a link to a folder")
		for _, name := range []string{"kustomized/kustomization.yaml", "kustomized/map.yaml", "generated.yaml", "linked"} {
			s.drop(name)
		}
		s.value("kustomized", "", "")
	})

	s.Run("the same refusal", func(t *testing.T) {
		s := s.in(t)
		// The API lists such faults in another order each time.
		var fields []string
		for i := range 12 {
			fields = append(fields, fmt.Sprintf("wrong-%d: x", i))
		}
		s.write("refused.yaml", fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: refused}\n%s\n", strings.Join(fields, "\n")))
		s.Eventually("an Event that is counted up", func() error {
			events, err := s.Client.CoreV1().Events("kube-system").List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=manifest-refused.yaml"})
			if err == nil && len(events.Items) > 1 {
				t.Fatalf("got %d Events, the last two are\n%s\n%s", len(events.Items), events.Items[0].Message, events.Items[1].Message)
			}
			if err == nil && (len(events.Items) == 0 || events.Items[0].Count < 4) {
				err = fmt.Errorf("the Events are %v", events.Items)
			}
			return err
		})
		s.drop("refused.yaml")
	})

	s.Run("static pods", func(t *testing.T) {
		s := s.in(t)
		const statics = "/var/lib/kedge/agent/pod-manifests/"
		s.Server.Host.WriteFile(statics+"broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: broken}\nspec: [\n")
		s.Server.Host.WriteFile(statics+"service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: broken}\n")
		s.Told("default", s.Server.Host.Name, statics+"broken.yaml", "line 4", "Correct the file")
		s.Told("default", s.Server.Host.Name, statics+"service.yaml", "it has no Pod", "Service")
		for _, name := range []string{"broken.yaml", "service.yaml"} {
			if err := os.Remove(s.Server.Host.Path(statics + name)); err != nil {
				t.Fatal(err)
			}
		}
	})

	s.Run("skip", func(t *testing.T) {
		s := s.in(t)
		s.write("skipped.yaml.skip", "")
		s.write("skipped.yaml", configMap("skipped", "a: x"))
		s.write("seen.yaml", configMap("seen", "a: x"))
		s.value("seen", "a", "x")
		s.value("skipped", "", "")
		s.drop("skipped.yaml.skip")
		s.value("skipped", "a", "x")
		s.write("skipped.yaml.skip", "")
		s.drop("skipped.yaml")
		s.drop("seen.yaml")
		s.value("seen", "", "")
		s.value("skipped", "a", "x")
		s.write("skipped.yaml", configMap("skipped", "a: x"))
	})

	s.Run("restart", func(t *testing.T) {
		s := s.in(t)
		s.write("disabled.yaml", configMap("disabled", "a: x"))
		s.write("pruned.yaml", configMap("pruned-1", "a: x")+configMap("pruned-2", "a: x"))
		s.write("gone.yaml", configMap("gone", "a: x"))
		for _, name := range []string{"disabled", "pruned-2", "gone"} {
			s.value(name, "a", "x")
		}
		s.Server.Terminate()
		s.drop("gone.yaml")
		s.write("pruned.yaml", configMap("pruned-1", "a: v2"))
		s.Server.Host.WriteFile("/etc/kedge/config.yaml", "disable: [disabled, traefik, nothing]\n")
		s.Server.Start()
		s.Server.WaitReady()
		s.Client = s.Server.Client()
		s.value("pruned-1", "a", "v2")
		for _, name := range []string{"disabled", "pruned-2", "gone"} {
			s.value(name, "", "")
		}
		s.value("skipped", "a", "x")
		s.Server.WaitLog("Cannot disable nothing")
		sets := s.Kubectl("get", "configmaps", "--namespace=kube-system", "--selector=applyset.kubernetes.io/id", "-o", "name")
		if !strings.Contains(sets, "manifest-pruned.yaml") || strings.Contains(sets, "gone") || strings.Contains(sets, "disabled") {
			t.Errorf("the sets are %s", sets)
		}
	})
}

// toldBy waits until an Event about a file in a folder, or with a name that is no name of a
// ConfigMap, has a reason and all words.
func (s *scenario) toldBy(file, reason string, words ...string) {
	s.Helper()
	s.Eventually("an Event about "+file, func() error {
		text, err := s.TryKubectl("", "get", "events", "--namespace=kube-system", "--field-selector=source=kedge-manifests,reason="+reason,
			"-o", "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}")
		if err != nil {
			return err
		}
		for message := range strings.Lines(text) {
			if strings.HasPrefix(message, folder+file+": ") && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(message, word) }) {
				return nil
			}
		}
		return fmt.Errorf("the Events are %s", text)
	})
}

// uid returns the UID of a ConfigMap.
func (s *scenario) uid(name string) string {
	s.Helper()
	return s.Kubectl("get", "configmap", name, "-o", "jsonpath={.metadata.uid}")
}
