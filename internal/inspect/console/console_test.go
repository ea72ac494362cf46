package console

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumebackups"
	"github.com/kedge-dev/kedge/internal/inspect/why"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// evil is text that a tenant may put anywhere: a script, codes of a terminal, and a mark that turns the direction of writing.
const evil = `<script>alert(1)</script>"onload="x` + "\x1b[31m\u202e"

var now = time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)

// objects are a small namespace, in which every text is evil.
func objects() []runtime.Object {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)), Labels: map[string]string{"app": "web"}}
	}
	owned := meta("web-1")
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-rs", Controller: ptr.To(true)}}
	set := meta("web-rs")
	set.OwnerReferences = []metav1.OwnerReference{{Kind: "Deployment", Name: "web", Controller: ptr.To(true)}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web"}}
	return []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: evil},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: evil}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: evil}},
		}},
		&appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
		&appsv1.ReplicaSet{ObjectMeta: set, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
		&corev1.Pod{ObjectMeta: owned, Spec: corev1.PodSpec{NodeName: "edge", Containers: []corev1.Container{{Name: "main", Image: evil}}}, Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: evil, RestartCount: 3, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff" + evil, Message: evil},
			}}},
		}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: evil}},
		&corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{Selector: selector.MatchLabels, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}},
		&networkingv1.Ingress{ObjectMeta: meta("front"), Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: evil, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Backend: backend}}}}}}}},
		&corev1.PersistentVolumeClaim{ObjectMeta: meta("data"), Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To(evil)}},
		&corev1.Event{
			ObjectMeta: meta("event"), InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "../../nodes/edge"},
			Reason: evil, Message: evil, Type: corev1.EventTypeWarning, LastTimestamp: metav1.NewTime(now.Add(-time.Minute)), Count: 7,
		},
	}
}

// recorded is what a node has recorded: a curve with a gap, and a moment.
func recorded(_ context.Context, node string, since time.Duration) (*recording.Recording, error) {
	if node != "edge" || since != 3*time.Hour {
		return nil, errors.New("another question: " + evil)
	}
	r := &recording.Recording{Curves: []recording.Curve{{Name: "cpu", Title: evil, Unit: "%"}, {Name: "none"}}}
	for i := range 100 {
		if i < 40 || i > 60 {
			r.Samples = append(r.Samples, recording.Sample{At: now.Add(time.Duration(i-100) * time.Minute), Values: []float64{float64(i), math.NaN()}})
		}
	}
	r.Moments = []recording.Moment{{At: now, Kind: "BackOff", Text: evil}}
	return r, nil
}

// site is the page with a browser.
type site struct {
	*testing.T
	console *Console
	api     *fake.Clientset
	objects *dynamicfake.FakeDynamicClient
	link    *url.URL
	browser *http.Client
}

// serve serves the page of the objects, until the test ends. The browser has opened the link.
func serve(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	testutil.CheckLeaks(t)
	api := fake.NewClientset(objects...)
	lists := map[schema.GroupVersionResource]string{
		kinds["httproute"]: "HTTPRouteList", kinds["gateway"]: "GatewayList", volumebackups.Resource: "VolumeBackupList", upgrades.Plans: "PlanList",
		{Group: "helm.cattle.io", Version: "v1", Resource: "helmcharts"}: "HelmChartList",
	}
	for _, kind := range []string{"GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"} {
		lists[schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: strings.ToLower(kind) + "s"}] = kind + "List"
	}
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, lists, objects...)
	c := New(Config{
		Clients: why.Clients{Kubernetes: api, Dynamic: dynamic, Now: func() time.Time { return now }}, Namespace: "own",
		Recording: recorded, Cluster: evil, Log: logrus.WithField("component", "test"),
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	links, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- c.Serve(ctx, listener, func(link string) { links <- link }) }()
	link, err := url.Parse(<-links)
	if err != nil {
		t.Fatal(err)
	}
	jar, _ := cookiejar.New(nil)
	s := &site{t, c, api, dynamic, link, &http.Client{Transport: &http.Transport{}, Jar: jar}}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the end: %v", err)
		}
		s.browser.CloseIdleConnections()
	})
	if status, _ := s.get(link.RequestURI()); status != http.StatusOK {
		t.Fatalf("the link answers %d", status)
	}
	return s
}

// send sends a request of the browser.
func (s *site) send(r *http.Request) (status int, body string) {
	s.Helper()
	answer, err := s.browser.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Fatal(err)
	}
	if policy := answer.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") {
		s.Errorf("%s has the policy %q", r.URL, policy)
	}
	return answer.StatusCode, string(text)
}

func (s *site) request(method, path string, body string) *http.Request {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, "http://"+s.link.Host+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

func (s *site) get(path string) (status int, body string) {
	s.Helper()
	return s.send(s.request(http.MethodGet, path, ""))
}

// TestPages opens each page. Nothing of what a tenant writes is more than text.
func TestPages(t *testing.T) {
	s := serve(t, objects()...)
	for path, wants := range map[string][]string{
		"/":                                     {"What is wrong", "node/edge", "/namespaces/shop/ingress/front", "not ready"},
		"/namespaces":                           {`href="/namespaces/shop"`, `<span class="bad">2</span>`},
		"/namespaces/shop":                      {"deployment/web", `href="/namespaces/shop/pod/web-1"`, "0 of 1 ready", "ports 80"},
		"/namespaces/shop/map":                  {"ingress/front leads to service/web", "service/web leads to deployment/web"},
		"/namespaces/shop/deployment/web":       {"The way that it took", `href="/namespaces/shop/deployment/web/do/restart"`, "Scale"},
		"/namespaces/shop/pod/web-1":            {"CrashLoopBackOff", "container=main&amp;previous=1", "node <a href=\"/nodes/edge\">"},
		"/namespaces/shop/pod/web-1/yaml":       {"nodeName: edge"},
		"/namespaces/shop/pod/web-1/log":        {"fake logs", `data-lines="/namespaces/shop/pod/web-1/log/lines?container=main"`},
		"/namespaces/shop/service/web":          {"service/web"},
		"/nodes":                                {`href="/nodes/edge"`},
		"/nodes/edge":                           {"Why it does not work", "/nodes/edge/do/cordon", "web-1"},
		"/volumes":                              {"persistentvolumeclaim/data"},
		"/events":                               {"1 warnings, 0 other Events", "(7 times)", `href="/namespaces/shop/pod/..%2F..%2Fnodes%2Fedge"`},
		"/events?from=1796043540&to=1796043600": {"The last hour"},
		"/events?from=x&to=-1":                  {"There are no Events"},
		"/namespaces/shop/pod/web-1/do/delete":  {`<form method="post">`, "Leave it as it is"},
		"/style.css":                            {"color-scheme"},
		"/page.js":                              {"EventSource"},
	} {
		status, body := s.get(path)
		if status != http.StatusOK {
			t.Errorf("%s answers %d: %s", path, status, body)
		}
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q:\n%s", path, want, body)
			}
		}
		for _, bad := range []string{"<script>alert", `"onload="x`, "\x1b", "\u202e", "ZgotmplZ"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s has %q:\n%s", path, bad, body)
			}
		}
	}
	for path, want := range map[string]int{
		"/nothing": 404, "/namespaces/shop/pod/none": 404, "/namespaces/shop/secret/web": 404, "/namespaces/shop/pod/none/yaml": 404, "/nodes/none": 404,
		"/namespaces/shop/pod/web-1/do/scale": 404, "/namespaces/shop/secret/web/yaml": 404,
	} {
		if status, body := s.get(path); status != want {
			t.Errorf("%s answers %d, want %d: %s", path, status, want, body)
		}
	}
}

// Without the cookie, or under another name, nobody gets in. A link works once.
func TestGuard(t *testing.T) {
	s := serve(t, objects()...)
	own := s.browser.Jar
	s.browser.Jar, _ = cookiejar.New(nil)
	for path, want := range map[string]string{
		"/":                                    "open the link that kedge console has printed",
		"/style.css":                           "open the link",
		openPath + "?key=wrong":                "was opened before",
		openPath:                               "was opened before",
		s.link.RequestURI():                    "was opened before",
		"/namespaces/shop/pod/web-1/log/lines": "open the link",
		"/namespaces/shop/pod/web-1/terminal":  "open the link",
		"/terminals/any/screen":                "open the link",
	} {
		if status, body := s.get(path); status != http.StatusForbidden || !strings.Contains(body, want) {
			t.Errorf("a stranger gets %d at %s: %s", status, path, body)
		}
	}
	s.browser.Jar = own
	if status, _ := s.get(s.link.RequestURI()); status != http.StatusOK {
		t.Errorf("the same browser opens the link again: %d", status)
	}
	forged := s.request(http.MethodGet, "/", "")
	forged.Host = "evil.test:" + s.link.Port()
	if status, _ := s.send(forged); status != http.StatusMisdirectedRequest {
		t.Errorf("a name that somebody else has for this address: %d", status)
	}
	for _, header := range [][2]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "http://evil.test"}, {"Origin", "http://127.0.0.1:1"}} {
		for _, path := range []string{"/namespaces/shop/pod/web-1/do/delete", "/namespaces/shop/pod/web-1/terminal", "/terminals/any/keys"} {
			post := s.request(http.MethodPost, path, "x=y")
			post.Header.Set(header[0], header[1])
			if status, _ := s.send(post); status != http.StatusForbidden {
				t.Errorf("another site changes something at %s, by %v: %d", path, header, status)
			}
		}
	}
	if _, err := s.api.CoreV1().Pods("shop").Get(t.Context(), "web-1", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestActions(t *testing.T) {
	s := serve(t, objects()...)
	s.browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	deployment := func() *unstructured.Unstructured {
		read, err := s.objects.Resource(kinds["deployment"]).Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return read
	}
	for _, test := range []struct {
		path, form string
		status     int
		holds      func() bool
	}{
		{"/namespaces/shop/deployment/web/do/scale", "number=4", 303, func() bool {
			n, _, _ := unstructured.NestedInt64(deployment().Object, "spec", "replicas")
			return n == 4
		}},
		{"/namespaces/shop/deployment/web/do/scale", "number=many", 409, nil},
		{"/namespaces/shop/deployment/web/do/restart", "x=y", 303, func() bool {
			at, _, _ := unstructured.NestedString(deployment().Object, "spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt")
			return at == "2026-11-30T13:00:00Z"
		}},
		{"/namespaces/shop/service/web/do/delete", "x=y", 404, nil},
		{"/nodes/edge/do/cordon", "x=y", 303, func() bool {
			n, err := s.api.CoreV1().Nodes().Get(t.Context(), "edge", metav1.GetOptions{})
			return err == nil && n.Spec.Unschedulable
		}},
		{"/nodes/edge/do/uncordon", "x=y", 303, func() bool {
			n, err := s.api.CoreV1().Nodes().Get(t.Context(), "edge", metav1.GetOptions{})
			return err == nil && !n.Spec.Unschedulable
		}},
		{"/namespaces/shop/pod/web-1/do/delete", "x=y", 303, func() bool {
			_, err := s.api.CoreV1().Pods("shop").Get(t.Context(), "web-1", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}},
	} {
		status, body := s.send(s.request(http.MethodPost, test.path, test.form))
		if status != test.status {
			t.Errorf("%s with %s answers %d, want %d: %s", test.path, test.form, status, test.status, body)
		}
		if test.holds != nil && !test.holds() {
			t.Errorf("%s with %s was not done", test.path, test.form)
		}
	}
}

// A user who may read only one namespace sees it, and is told what is missing.
func TestTenant(t *testing.T) {
	s := serve(t, objects()...)
	s.api.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "shop" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", nil)
	})
	for path, want := range map[string]string{
		"/":                "You may not read nodes",
		"/namespaces":      `href="/namespaces/own"`,
		"/namespaces/shop": "deployment/web",
		"/nodes":           "You may not read nodes",
		"/volumes":         "You may not read claims",
		"/events":          "You may not read Events",
	} {
		if status, body := s.get(path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s answers %d, and lacks %q:\n%s", path, status, want, body)
		}
	}
	if status, _ := s.get("/nodes/edge"); status != http.StatusNotFound {
		t.Errorf("a node that the user may not read: %d", status)
	}
}

// An API that does not answer is said, and no page is half.
func TestFault(t *testing.T) {
	s := serve(t, objects()...)
	s.api.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(io.ErrUnexpectedEOF)
	})
	status, body := s.get("/namespaces/shop")
	if status != http.StatusBadGateway || !strings.Contains(body, "unexpected EOF") || strings.Contains(body, "Workloads") {
		t.Errorf("got %d:\n%s", status, body)
	}
}

// event is one of a stream.
type event struct{ name, body string }

// open opens a stream.
func (s *site) open(path string) (next func() event) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	r := s.request(http.MethodGet, path, "").WithContext(ctx)
	r.Header.Set("Accept", "text/event-stream")
	answer, err := s.browser.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		cancel()
		answer.Body.Close()
	})
	lines := bufio.NewScanner(answer.Body)
	return func() (e event) {
		for lines.Scan() {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				e.name = name
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				body, err := base64.StdEncoding.DecodeString(data)
				if err != nil {
					s.Fatal(err)
				}
				e.body = string(body)
				return e
			}
		}
		return event{name: "ended"}
	}
}

// A page that stays open is sent when it has changed. The lines of a log come one by one.
func TestStreams(t *testing.T) {
	s := serve(t, objects()...)
	next := s.open("/nodes")
	if e := next(); e.name != "main" || !strings.Contains(e.body, "not ready") {
		t.Errorf("the first event: %+v", e)
	}
	if e := next(); e.name != "same" {
		t.Errorf("nothing has changed: %+v", e)
	}
	if err := s.api.CoreV1().Nodes().Delete(t.Context(), "edge", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		e := next()
		if e.name == "main" && !strings.Contains(e.body, "edge") {
			break
		}
		if e.name == "ended" {
			t.Fatal("the stream ended")
		}
	}
	log := s.open("/namespaces/shop/pod/web-1/log/lines?container=main")
	if e := log(); e.name != "begin" {
		t.Errorf("the beginning: %+v", e)
	}
	if e := log(); e != (event{"line", "fake logs"}) {
		t.Errorf("the first line: %+v", e)
	}
	if e := log(); e != (event{"end", "The log ends here."}) {
		t.Errorf("the end of the log: %+v", e)
	}
}
