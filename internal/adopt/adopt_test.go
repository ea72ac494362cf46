package adopt

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/k3shost"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// crd returns a stored CustomResourceDefinition.
func crd(group, kind string) row {
	plural := strings.ToLower(kind) + "s"
	return row{key: registry + "apiextensions.k8s.io/customresourcedefinitions/" + plural + "." + group, text: fmt.Appendf(nil,
		`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"%s.%s"},"spec":{"group":%q,"version":"v1","names":{"plural":%q,"kind":%q},"scope":"Namespaced"}}`,
		plural, group, group, plural, kind)}
}

func secretRow(t *testing.T, encrypt func(*testing.T, string, []byte) []byte, secret *corev1.Secret) row {
	key := registry + "secrets/" + secret.Namespace + "/" + secret.Name
	return row{key: key, text: encrypt(t, key, stored(t, secret))}
}

// rows are what a k3s could have stored, and the reasons with which some are left out.
func allRows(t *testing.T, encrypt func(*testing.T, string, []byte) []byte) (rows []row, reasons map[string]string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Finalizers: []string{"wrangler.cattle.io/node", "example.com/mine"}}}
	node.Spec.PodCIDRs = []string{"10.42.0.0/24"}
	node.Status.NodeInfo.KubeletVersion = "v1.21.3+k3s1"
	api := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.1"}}
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps", Finalizers: []string{"svccontroller.k3s.cattle.io/daemonset"}}}
	password := func(value string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password", Namespace: "apps"}, Data: map[string][]byte{"password": []byte(value)}}
	}
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef", Namespace: "kube-system"}, Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{bootstrapapi.BootstrapTokenExtraGroupsKey: []byte(k3sNewcomers)},
	}
	immutable := true
	proof := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "one.node-password.k3s", Namespace: "kube-system", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "one", UID: "of-node-one"}}},
		Type:       "k3s.cattle.io/node-password", Immutable: &immutable, Data: map[string][]byte{"hash": []byte("$1:00:15:8:1:00")},
	}
	node.UID = "of-node-one"
	reasons = map[string]string{
		"/bootstrap/0123456789ab":                "k3s's copy of the authorities",
		registry + "podsecuritypolicy/old":       "has no kind PodSecurityPolicy of policy/v1beta1",
		registry + "gone.example.com/things/x":   "no CustomResourceDefinition defines it",
		registry + "configmaps/apps/broken":      "cannot be read",
		registry + "roles/kube-system/of-theirs": "k3s's own components",
	}
	return []row{
		{key: "compact_rev_key", text: []byte{}},
		{key: registry + "health", text: []byte(`{"health":"true"}`)},
		{key: "/bootstrap/0123456789ab", text: []byte("0123:sealed")},
		{key: registry + "configmaps/apps/changed", text: configMap(t, "changed", "1")},
		{key: registry + "configmaps/apps/changed", text: configMap(t, "changed", "2")},
		{key: registry + "configmaps/apps/gone", text: configMap(t, "gone", "1")},
		{key: registry + "configmaps/apps/gone", deleted: true},
		{key: registry + "configmaps/apps/back", text: configMap(t, "back", "1")},
		{key: registry + "configmaps/apps/back", deleted: true},
		{key: registry + "configmaps/apps/back", text: configMap(t, "back", "2")},
		{key: registry + "configmaps/apps/broken", text: []byte("k8s\x00\xff\xff")},
		secretRow(t, encrypt, password("first")),
		secretRow(t, encrypt, password("correct-horse")),
		secretRow(t, encrypt, token),
		secretRow(t, encrypt, proof),
		{key: "gap-13", deleted: true}, // of a transaction that failed
		{key: registry + "podsecuritypolicy/old", text: unknown(t, "policy/v1beta1", "PodSecurityPolicy")},
		// Kubernetes still reads stored objects of this version.
		{key: registry + "ingress/apps/old", text: []byte(`{"kind":"Ingress","apiVersion":"extensions/v1beta1","metadata":{"name":"old","namespace":"apps"}}`)},
		{key: registry + "gone.example.com/things/x", text: []byte(`{"kind":"Thing","apiVersion":"gone.example.com/v1","metadata":{"name":"x"}}`)},
		{key: registry + "roles/kube-system/of-theirs", text: []byte(`{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"of-theirs","namespace":"kube-system",` +
			`"annotations":{"objectset.rio.cattle.io/owner-gvk":"k3s.cattle.io/v1, Kind=Addon","objectset.rio.cattle.io/owner-name":"rolebindings"}}}`)},
		crd("example.com", "Widget"),
		{key: registry + "example.com/widgets/apps/w", text: []byte(`{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","namespace":"apps","finalizers":["wrangler.cattle.io/mine"]},"spec":{"n":12345678901234567890}}`)},
		crd("helm.cattle.io", "HelmChart"),
		{key: registry + "helm.cattle.io/helmcharts/kube-system/h", text: []byte(`{"kind":"HelmChart","apiVersion":"helm.cattle.io/v1","metadata":{"name":"h","namespace":"kube-system","finalizers":["wrangler.cattle.io/on-helm-chart-remove"]},"spec":{"n":12345678901234567890}}`)},
		{key: registry + "minions/one", text: stored(t, node)},
		{key: registry + "services/specs/default/kubernetes", text: stored(t, api)},
		{key: registry + "services/specs/apps/web", text: stored(t, web)},
		// After a crash, a Lease would get a new revision.
		{key: registry + "leases/kube-node-lease/one", text: stored(t, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "kube-node-lease"}})},
	}, reasons
}

// unknown returns a stored object of a kind that this version of Kubernetes does not have.
func unknown(t *testing.T, version, kind string) []byte {
	t.Helper()
	text, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: []byte{1}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), text...)
}

// contents returns the present keys of an exported datastore.
func contents(t *testing.T, export datastore.Export) map[string]*mvccpb.KeyValue {
	t.Helper()
	found := map[string]*mvccpb.KeyValue{}
	_, _, err := export(t.Context(), func(e *mvccpb.Event) error {
		found[string(e.Kv.Key)] = proto.Clone(e.Kv).(*mvccpb.KeyValue)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Objects are in the new datastore with their revisions, or in the report.
func TestObjects(t *testing.T) {
	for name, test := range map[string]struct {
		provider string
		encrypt  func(*testing.T, string, []byte) []byte
		change   func(*config.Config)
	}{
		"aescbc":            {"aescbc", aescbc, nil},
		"secretbox":         {"secretbox", boxed, nil},
		"not encrypted":     {"", func(_ *testing.T, _ string, text []byte) []byte { return text }, nil},
		"to etcd":           {"aescbc", aescbc, func(c *config.Config) { c.Server.ClusterInit = true }},
		"encrypted no more": {"aescbc", aescbc, func(c *config.Config) { c.Server.SecretsEncryption = false }},
	} {
		t.Run(name, func(t *testing.T) {
			rows, reasons := allRows(t, test.encrypt)
			root := newK3s(t, rows)
			if test.provider != "" {
				write(t, filepath.Join(root, k3shost.DataFolder, "server/cred/encryption-config.json"), keysFile(test.provider))
			}
			a := newAdoption(t, root)
			if test.change != nil {
				test.change(a.Settings)
			}
			before := sums(t, root)
			run(t, a)
			if sums(t, root) != before {
				t.Error("k3s's files have changed")
			}
			export := sqlite.New(sqlite.Config{Dir: a.dir.ServerDB()}).Export
			if a.Settings.Server.ClusterInit {
				export = etcd.Stopped{Dir: a.dir.Etcd(), Scratch: filepath.Join(t.TempDir(), "copy")}.Export
			}
			checkContents(t, a, rows, reasons, contents(t, export))
		})
	}
}

func checkContents(t *testing.T, a *adoption, rows []row, reasons map[string]string, got map[string]*mvccpb.KeyValue) {
	t.Helper()
	want := map[string]int64{}
	for i, r := range rows {
		if want[r.key] = int64(i + 1); r.deleted || reasons[r.key] != "" || r.key == "compact_rev_key" || r.key == registry+"health" {
			delete(want, r.key)
		}
	}
	if a.report.Objects != len(want) {
		t.Errorf("%d objects are reported, want %d", a.report.Objects, len(want))
	}
	enabled := a.Settings.Server.SecretsEncryption
	if enabled {
		want["/kedge/encryption/keys"] = int64(len(rows) + 1)
	}
	have := map[string]int64{}
	for key, kv := range got {
		have[key] = kv.ModRevision
	}
	if !maps.Equal(have, want) {
		t.Errorf("the keys have the revisions %v, want %v", have, want)
	}
	var said strings.Builder
	for _, o := range a.report.LeftOut {
		fmt.Fprintln(&said, o.Kind, o.Namespace, o.Name, o.Reason)
	}
	if len(a.report.LeftOut) != len(reasons) {
		t.Errorf("%d objects are named, want %d:\n%s", len(a.report.LeftOut), len(reasons), &said)
	}
	for key, reason := range reasons {
		if !strings.Contains(said.String(), reason) {
			t.Errorf("%s is not named because %s:\n%s", key, reason, &said)
		}
	}

	secret := got[registry+"secrets/apps/password"].Value
	if enabled == strings.Contains(string(secret), "correct-horse") || enabled != strings.HasPrefix(string(secret), "k8s:enc:secretbox:v1:2") {
		t.Errorf("the Secret is stored as %q", secret)
	}
	if !enabled {
		if token := string(got[registry+"secrets/kube-system/bootstrap-token-abcdef"].Value); !strings.Contains(token, k3sNewcomers+",system:bootstrappers:kedge:nodes") {
			t.Errorf("the bootstrap token is %q", token)
		}
	}
	if text := string(got[registry+"configmaps/apps/changed"].Value); text != string(configMap(t, "changed", "2")) {
		t.Errorf("a ConfigMap is %q", text)
	}
	read := apiserver.NewStoredObjects()
	for key, want := range map[string]string{
		registry + "minions/one":                             "[example.com/mine]",
		registry + "services/specs/apps/web":                 "[]",
		registry + "helm.cattle.io/helmcharts/kube-system/h": "[]",
		registry + "example.com/widgets/apps/w":              "[wrangler.cattle.io/mine]",
	} {
		text := got[key].Value
		object, err := read.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		accessor, err := metaOf(object, text)
		if err != nil || fmt.Sprint(accessor.GetFinalizers()) != want {
			t.Errorf("%s has the finalizers %v, %v, want %s", key, accessor.GetFinalizers(), err, want)
		}
		if object.Object == nil && !strings.Contains(string(text), "12345678901234567890") {
			t.Errorf("%s is %s", key, text)
		}
	}
}

// A crash after any step leaves k3s's files as they are, and nothing that a start of kedge
// would use, and the next adoption has everything.
func TestCrash(t *testing.T) {
	rows, reasons := allRows(t, aescbc)
	root := newK3s(t, rows)
	write(t, filepath.Join(root, k3shost.DataFolder, "server/cred/encryption-config.json"), keysFile("aescbc"))
	before := sums(t, root)
	for end := range newAdoption(t, root).steps() {
		a := newAdoption(t, root)
		for _, step := range a.steps()[:end] {
			if err := step.do(t.Context()); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
		}
		if _, err := os.Stat(a.dir.Server()); err == nil {
			t.Fatalf("after %d steps, there is a server", end)
		}
	}
	a := newAdoption(t, root)
	run(t, a)
	if sums(t, root) != before {
		t.Error("k3s's files have changed")
	}
	checkContents(t, a, rows, reasons, contents(t, sqlite.New(sqlite.Config{Dir: a.dir.ServerDB()}).Export))
	for file, want := range map[string]string{
		filepath.Join(a.dir.Manifests(), "mine.yaml"):                    "mine",
		filepath.Join(a.dir.Manifests(), "traefik.settings.Config.yaml"): "mine",
		filepath.Join(a.dir.Charts(), "a.tgz"):                           "chart",
		filepath.Join(a.dir.Images(), "a.tar"):                           "archive",
		a.Settings.Node.PrivateRegistry:                                  "mirrors: {}\n",
	} {
		if text, err := os.ReadFile(file); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v, want %q", file, text, err, want)
		}
	}
	for _, file := range []string{filepath.Join(a.dir.Manifests(), "coredns.yaml"), filepath.Join(a.dir.Manifests(), "coredns.yaml.skip"), filepath.Join(a.dir.Images(), ".cache.json"), filepath.Join(a.dir.Manifests(), "metrics-server"), string(a.made)} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("there is %s", file)
		}
	}
	for _, name := range []string{"server-ca.crt", "server-ca.key", "client-ca.key", "request-header-ca.key", "service.key", "etcd/peer-ca.key"} {
		theirs, err := os.ReadFile(a.k3s.server("tls", name))
		if err != nil {
			t.Fatal(err)
		}
		if ours, err := os.ReadFile(filepath.Join(a.dir.ServerTLS(), name)); err != nil || string(ours) != string(theirs) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
	if text, err := os.ReadFile(a.dir.ServerToken()); err != nil || !strings.HasSuffix(string(text), "::server:secret\n") {
		t.Errorf("the token is %q, %v", text, err)
	}
	text, err := os.ReadFile(a.dir.Adopted())
	if err != nil || !strings.Contains(string(text), "PodSecurityPolicy") {
		t.Errorf("the report is %q, %v", text, err)
	}
	if err := checkEmpty(a.dir); err == nil || !strings.Contains(err.Error(), "move that folder away") {
		t.Errorf("adopted again: %v", err)
	}
}

// An adoption refuses a k3s of which it cannot take everything, and says what to do.
func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, root string, node *corev1.Node, a *config.Config)
		want   string
	}{
		"too old": {func(_ *testing.T, _ string, node *corev1.Node, _ *config.Config) {
			node.Status.NodeInfo.KubeletVersion = "v1.20.15+k3s1"
		}, "upgrade k3s first"},
		"too new": {func(_ *testing.T, _ string, node *corev1.Node, _ *config.Config) {
			node.Status.NodeInfo.KubeletVersion = "v1.99.0+k3s1"
		}, "use kedge v1.99 or later"},
		"other pods": {func(_ *testing.T, _ string, node *corev1.Node, _ *config.Config) {
			node.Spec.PodCIDRs = []string{"10.52.0.0/24"}
		}, "set cluster-cidr to that of k3s"},
		"other ranges": {func(_ *testing.T, _ string, _ *corev1.Node, cfg *config.Config) {
			cfg.Cluster.ServiceCIDR = []string{"10.53.0.0/16"}
		}, "set service-cidr to that of k3s"},
		"no keys": {func(t *testing.T, root string, _ *corev1.Node, _ *config.Config) {
			remove(t, root, "cred/encryption-config.json")
		}, "put the file back"},
		"other keys": {func(t *testing.T, root string, _ *corev1.Node, _ *config.Config) {
			write(t, filepath.Join(root, k3shost.DataFolder, "server/cred/encryption-config.json"), strings.ReplaceAll(keysFile("aescbc"), "aescbckey", "other"))
		}, "put the file back that k3s used last"},
		"kms": {func(t *testing.T, root string, _ *corev1.Node, _ *config.Config) {
			write(t, filepath.Join(root, k3shost.DataFolder, "server/cred/encryption-config.json"), `{"resources":[{"resources":["secrets"],"providers":[{"kms":{"name":"x"}}]}]}`)
		}, "encrypt Secrets with aescbc or secretbox first"},
		"no account key": {func(t *testing.T, root string, _ *corev1.Node, _ *config.Config) { remove(t, root, "tls/service.key") }, "start k3s once"},
		"no token":       {func(t *testing.T, root string, _ *corev1.Node, _ *config.Config) { remove(t, root, "token") }, "start k3s once"},
		"no database":    {func(t *testing.T, root string, _ *corev1.Node, _ *config.Config) { remove(t, root, "db/state.db") }, "keeps no objects on this host"},
		"an etcd of theirs": {func(t *testing.T, root string, _ *corev1.Node, _ *config.Config) {
			write(t, filepath.Join(root, k3shost.ConfigFolder, "config.yaml"), "datastore-endpoint: https://192.0.2.9:2379\n")
		}, "an etcd of your own"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
			cfg := config.Default()
			root := newK3s(t, nil)
			write(t, filepath.Join(root, k3shost.DataFolder, "server/cred/encryption-config.json"), keysFile("aescbc"))
			test.change(t, root, node, cfg)
			if _, err := os.Stat(filepath.Join(root, k3shost.DataFolder, "server/db/state.db")); err == nil {
				api := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.1"}}
				writeRows(t, filepath.Join(root, k3shost.DataFolder, "server/db/state.db"), []row{
					{key: registry + "minions/one", text: stored(t, node)},
					{key: registry + "services/specs/default/kubernetes", text: stored(t, api)},
					secretRow(t, aescbc, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "apps"}}),
				})
			}
			a := newAdoption(t, root)
			a.Settings.Cluster = cfg.Cluster
			err := a.run(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
			if _, err := os.Stat(a.dir.Server()); err == nil {
				t.Error("there is a server")
			}
		})
	}
}

func remove(t *testing.T, root, file string) {
	t.Helper()
	if err := os.Remove(filepath.Join(root, k3shost.DataFolder, "server", file)); err != nil {
		t.Fatal(err)
	}
}

// Settings with which the new server would not use what is adopted are refused.
func TestTarget(t *testing.T) {
	for want, change := range map[string]func(*config.Config){
		"":                   func(*config.Config) {},
		"datastore-endpoint": func(c *config.Config) { c.Server.Datastore.Endpoint = "postgres://u:p@192.0.2.1/x" },
		"has server":         func(c *config.Config) { c.Agent.Server = "https://192.0.2.1:6443" },
		"disable-etcd":       func(c *config.Config) { c.Server.DisableEtcd = true },
		"encryption-provider-config": func(c *config.Config) {
			c.Server.KubeAPIServerArgs = []string{"encryption-provider-config=/etc/keys.yaml"}
		},
	} {
		cfg := config.Default()
		change(cfg)
		if err := checkTarget(cfg); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// A process that uses the datastore, or keeps a container, is named.
func TestStopped(t *testing.T) {
	root := newK3s(t, nil)
	k, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "proc/1/cmdline"), "/sbin/init\x00")
	write(t, filepath.Join(root, "proc/self/cmdline"), shimAddress)
	if err := k.checkStopped(); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(root, "proc/7/cmdline"), "containerd-shim-runc-v2\x00-namespace\x00k8s.io\x00-address\x00"+shimAddress+"\x00")
	if err := k.checkStopped(); err == nil || !strings.Contains(err.Error(), "process 7") {
		t.Errorf("with a shim: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(root, "proc/7")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "proc/8/cmdline"), "k3s\x00server\x00")
	if err := os.MkdirAll(filepath.Join(root, "proc/8/fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(k.server("db", "state.db"), filepath.Join(root, "proc/8/fd/3")); err != nil {
		t.Fatal(err)
	}
	if err := k.checkStopped(); err == nil || !strings.Contains(err.Error(), "process 8 uses k3s's datastore") {
		t.Errorf("with k3s: %v", err)
	}
}

// Objects that others own are left out only together with all their owners.
func TestOwners(t *testing.T) {
	o := newObjects(nil, &config.Default().Cluster)
	put := func(uid, kind, annotations string, owners ...string) {
		var references []map[string]string
		for _, owner := range owners {
			references = append(references, map[string]string{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner})
		}
		text, err := json.Marshal(references)
		if err != nil {
			t.Fatal(err)
		}
		object := fmt.Sprintf(`{"kind":%q,"apiVersion":"v1","metadata":{"name":%q,"namespace":"kube-system","uid":%q,"annotations":{%s},"ownerReferences":%s}}`, kind, uid, uid, annotations, text)
		if err := o.look(context.Background(), registry+uid, []byte(object), 1); err != nil {
			t.Fatal(err)
		}
	}
	const theirs = `"objectset.rio.cattle.io/owner-gvk":"k3s.cattle.io/v1, Kind=Addon","objectset.rio.cattle.io/owner-name":"coredns"`
	put("pod", "Pod", "", "set")
	put("set", "ReplicationController", "", "kube-dns")
	put("kube-dns", "Service", theirs)
	put("shared", "Pod", "", "kube-dns", "other")
	put("other", "ConfigMap", "")
	// Kinds of other groups that have the names of Kubernetes's own.
	for key, text := range map[string]string{
		"serving.knative.dev/services/kube-system/web": `{"kind":"Service","apiVersion":"serving.knative.dev/v1","metadata":{"name":"web","namespace":"kube-system","uid":"of-knative"}}`,
		"services/endpoints/kube-system/web":           `{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"web","namespace":"kube-system","uid":"endpoints"}}`,
		"apps.kruise.io/daemonsets/kube-system/web": `{"kind":"DaemonSet","apiVersion":"apps.kruise.io/v1alpha1","metadata":{"name":"kruise","namespace":"kube-system","uid":"kruise",
			"labels":{"svccontroller.k3s.cattle.io/svcname":"web"}}}`,
		"apps.kruise.io": `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"daemonsets.apps.kruise.io","uid":"crd"},
			"spec":{"group":"apps.kruise.io","version":"v1alpha1","names":{"plural":"daemonsets","kind":"DaemonSet"},"scope":"Namespaced"}}`,
		"daemonsets/kube-system/svclb": `{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"name":"svclb","namespace":"kube-system","uid":"svclb","labels":{"svccontroller.k3s.cattle.io/svcname":"web"}}}`,
	} {
		if err := o.look(context.Background(), registry+key, []byte(text), 1); err != nil {
			t.Fatal(err)
		}
	}
	o.decide()
	var out []string
	for _, f := range o.found {
		if f.reason != "" {
			out = append(out, f.kind.GroupKind().String()+" "+f.name)
		}
	}
	slices.Sort(out)
	if want := []string{"DaemonSet.apps svclb", "Pod pod", "ReplicationController set", "Service kube-dns", "Service.serving.knative.dev web"}; !slices.Equal(out, want) {
		t.Errorf("left out are %v, want %v", out, want)
	}
}
