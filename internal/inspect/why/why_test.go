package why

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	discoveryfake "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumebackups"
)

// now is the time in all files of testdata.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// example is a file of testdata: the object that is asked about, what is to be said of it, and the objects of the cluster.
type example struct {
	// ask is such as "pod/web". says is the sentence, do is what to do, and rule is the name of the rule. well is "yes" for an object without a fault.
	ask, says, do, rule, well string
	// log is that of each container. volume is what the node measures of the volume of the claim data in the pod web: free and
	// all bytes, free and all files.
	log, volume string
	// objects are those of kinds that Kubernetes has. custom are the others.
	objects []runtime.Object
	custom  []*unstructured.Unstructured
}

func readExample(t *testing.T, file string) (e example) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(content), "---\n")
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "#")), ": ")
		field, ok := map[string]*string{"ask": &e.ask, "says": &e.says, "do": &e.do, "rule": &e.rule, "well": &e.well, "log": &e.log, "volume": &e.volume}[key]
		if !ok {
			t.Fatalf("%s: %q is not a field", file, key)
		}
		*field = value
	}
	for document := range strings.SplitSeq(body, "---\n") {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if runtime.IsNotRegisteredError(err) {
			custom := &unstructured.Unstructured{}
			if err = yaml.Unmarshal([]byte(document), &custom.Object); err == nil {
				e.custom = append(e.custom, custom)
				continue
			}
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, document)
		}
		e.objects = append(e.objects, object)
	}
	return e
}

// clients returns the clients of a cluster with the objects.
func (e example) clients(t *testing.T) Clients {
	kinds := map[string]schema.GroupVersionResource{
		"GatewayClass": gatewayClasses, "Gateway": gateways, "HTTPRoute": gatewayResource("httproutes"), "GRPCRoute": gatewayResource("grpcroutes"), "TLSRoute": gatewayResource("tlsroutes"), "TCPRoute": gatewayResource("tcproutes"), "UDPRoute": gatewayResource("udproutes"), "HelmChart": charts, "VolumeBackup": volumebackups.Resource, "Plan": upgrades.Plans,
	}
	lists := map[schema.GroupVersionResource]string{}
	for kind, resource := range kinds {
		lists[resource] = kind + "List"
	}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	for _, o := range e.custom {
		if err := client.Tracker().Create(kinds[o.GetKind()], o, o.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	return Clients{Kubernetes: e.cluster(), Dynamic: client, Summary: e.summary, Now: func() time.Time { return now }}
}

// summary is what a node measures.
func (e example) summary(context.Context, string) (*stats.Summary, error) {
	var n [4]uint64
	if _, err := fmt.Sscan(e.volume, &n[0], &n[1], &n[2], &n[3]); err != nil {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", err)
	}
	return &stats.Summary{Pods: []stats.PodStats{
		{PodRef: stats.PodReference{Namespace: "other", Name: "web"}},
		{PodRef: stats.PodReference{Namespace: "default", Name: "web"}, VolumeStats: []stats.VolumeStats{
			{Name: "scratch"},
			{PVCRef: &stats.PVCReference{Namespace: "default", Name: "data"}, FsStats: stats.FsStats{AvailableBytes: &n[0], CapacityBytes: &n[1], InodesFree: &n[2], Inodes: &n[3]}},
		}},
	}}, nil
}

// cluster returns a client of a cluster with the objects of Kubernetes' kinds.
func (e example) cluster() *fake.Clientset {
	client := fake.NewClientset(e.objects...)
	client.Discovery().(*discoveryfake.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.37.2+kedge.2"}
	client.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetSubresource() == "log", &runtime.Unknown{Raw: []byte(e.log)}, nil
	})
	return client
}

// TestExamples asks about each object of testdata. Each rule must have a file.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, file := range files {
		e := readExample(t, file)
		// A rule that says the finding of another object has a file of its name.
		tried[e.rule], tried[strings.TrimSuffix(filepath.Base(file), ".yaml")] = true, true
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			object, err := Parse("default", e.ask)
			if err != nil {
				t.Fatal(err)
			}
			report, err := Explain(t.Context(), e.clients(t), object)
			if err != nil {
				t.Fatal(err)
			}
			got := &Step{}
			for i := range report.Steps {
				if s := &report.Steps[i]; s.Rule != "" {
					got = s
				}
			}
			if got.Says != e.says || got.Do != e.do || got.Rule != e.rule || (e.well != "") != report.Well() {
				t.Errorf("got\n# says: %s\n# do: %s\n# rule: %s\nof %+v", got.Says, got.Do, got.Rule, report.Steps)
			}
		})
	}
	for _, name := range ruleNames() {
		if !tried[name] {
			t.Errorf("the rule %s has no file in testdata", name)
		}
	}
}

// TestForbidden asks as a user who may not read the nodes, nor the pods of other namespaces.
func TestForbidden(t *testing.T) {
	client := readExample(t, "testdata/no-node-fits.yaml").cluster()
	forbid := func(action clienttesting.Action) (bool, runtime.Object, error) {
		resource := action.GetResource().GroupResource()
		return action.GetNamespace() == "", nil, apierrors.NewForbidden(resource, "", errors.New("no"))
	}
	client.PrependReactor("*", "*", forbid)
	report, err := Explain(t.Context(), Clients{Kubernetes: client, Now: func() time.Time { return now }}, Object{"Pod", "default", "web"})
	if err != nil {
		t.Fatal(err)
	}
	cause := report.Cause()
	if cause == nil || cause.Rule != "unschedulable" || cause.Do != "ask a user who may read nodes and all pods to run: kedge why -n default pod/web" {
		t.Errorf("got %+v", cause)
	}
	if !slices.Equal(report.Unread, []string{"You may not read nodes, so what they would tell is missing here."}) {
		t.Errorf("got %q", report.Unread)
	}
}

// ruleNames returns the names of all rules.
func ruleNames() (all []string) {
	all = append(all, of(podWay)...)
	all = append(all, of(workloadWay)...)
	all = append(all, of(claimWay)...)
	all = append(all, of(serviceWay)...)
	all = append(all, of(ingressWay)...)
	all = append(all, of(nodeWay)...)
	all = append(all, of(namespaceWay)...)
	all = append(all, of(cronJobWay)...)
	all = append(all, of(gatewayWay)...)
	all = append(all, of(routeWay)...)
	all = append(all, of(chartWay)...)
	all = append(all, of(planWay)...)
	all = append(all, of(volumeBackupWay)...)
	for _, rule := range deploymentRules {
		all = append(all, rule.name)
	}
	for _, rule := range daemonSetRules {
		all = append(all, rule.name)
	}
	for _, rule := range jobRules {
		all = append(all, rule.name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func of[T any](way []stage[T]) (all []string) {
	for _, stage := range way {
		for _, rule := range stage.rules {
			all = append(all, rule.name)
		}
	}
	return all
}

func TestParse(t *testing.T) {
	for words, want := range map[string]string{
		"pod/web":    "default Pod web",
		"po/web":     "default Pod web",
		"deploy web": "default Deployment web",
		"NODE/a":     " Node a",
		"pod":        `name one object, such as pod/web or deployment/web, in place of "pod"`,
		"pod/":       `name one object, such as pod/web or deployment/web, in place of "pod/"`,
		"cow/web":    `kedge cannot explain a "cow". It explains pod, deployment, statefulset, daemonset, replicaset, job, cronjob, service, ingress, persistentvolumeclaim, node, namespace, gateway, httproute, grpcroute, tlsroute, tcproute, udproute, helmchart, volumebackup, plan`,
	} {
		object, err := Parse("default", strings.Fields(words)...)
		got := object.Namespace + " " + object.Kind + " " + object.Name
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", words, got, want)
		}
	}
}

// TestForeignText asks about a pod whose owner wants to control the terminal, and the shell, of the administrator who asks.
func TestForeignText(t *testing.T) {
	const evil = "login; reboot; \x1b[2J'\n"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.PodSpec{
			NodeName: "node-1", ImagePullSecrets: []corev1.LocalObjectReference{{Name: evil}},
			Containers: []corev1.Container{{Name: "main", Image: "\x1b[2J$(reboot)"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, PodIP: "10.42.0.2", ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "401 Unauthorized\x1b[2J"}},
		}}},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	report, err := Explain(t.Context(), Clients{Kubernetes: fake.NewClientset(pod, node), Now: func() time.Time { return now }}, Object{"Pod", "default", "web"})
	if err != nil {
		t.Fatal(err)
	}
	cause := report.Cause()
	if want := `create secret docker-registry 'login; reboot; [2J'\'' ' --docker-server=' [2J$(reboot)' `; cause == nil || !strings.Contains(cause.Do, want) || strings.Contains(cause.Says+cause.Do, "\x1b") {
		t.Errorf("got %q, want %q", cause, want)
	}
}
