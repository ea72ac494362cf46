// Package console drives the page of `kedge console` in Chromium: each view, also without JavaScript, on a narrow screen
// and by keyboard, with hundreds of pods and thousands of Events. It works in a terminal in a pod, too.
package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// How much there is to show.
const (
	manyPods   = 300
	manyEvents = 5000
)

// shop is a namespace with what the pages show: an app that works, one that does not, and a claim.
const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %[1]q, args: [serve, "8080"]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: broken, namespace: shop}
spec:
  selector: {matchLabels: {app: broken}}
  template:
    metadata: {labels: {app: broken}}
    spec:
      containers: [{name: main, image: "nowhere.test/missing:1"}]
---
apiVersion: v1
kind: Pod
metadata: {name: talker, namespace: shop}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %[2]q
    command: [sh, -c, 'while true; do echo "<script>document.title=1</script> $(date)"; printf "\033[31mred\n"; sleep 1; done']
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front, namespace: shop}
spec:
  rules: [{host: shop.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: many}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: idle, namespace: many}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: idle}}
  template:
    metadata: {labels: {app: idle}}
    spec:
      nodeSelector: {nobody: has-this}
      containers: [{name: main, image: %[1]q}]
`

// seen is a cluster, seen by a browser.
type seen struct {
	*cluster.Cluster
	// page is the address of the page, and pictures the folder of screenshots.
	page, pictures string
	axe            string
}

func TestConsole(t *testing.T) {
	harness.Require(t)
	harness.Need(t, "chromium")
	script, err := os.ReadFile(harness.Built(t, "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	cluster.PreloadBusybox(t, host)
	server := host.StartServer(t)
	server.WaitReady()
	s := &seen{Cluster: cluster.Of(t, server), axe: string(script)}
	host.WriteFile("/opt/shop.yaml", fmt.Sprintf(shop, image.TestserverName, image.BusyboxName, manyPods))
	s.Eventually("the objects to be applied", func() error { // a new namespace may not have its ServiceAccount yet
		if output, err := host.Kedge(t.Context(), "kubectl", "apply", "-f", "/opt/shop.yaml").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
	s.flood()
	s.Kubectl("rollout", "status", "--namespace=shop", "deployment/web", "--timeout="+harness.Slowly(cluster.Patience).String())
	s.Kubectl("wait", "--namespace=shop", "pod/talker", "--for=condition=Ready", "--timeout="+harness.Slowly(cluster.Patience).String())

	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	s.pictures = filepath.Join(repository, "build", "console")
	if err := os.MkdirAll(s.pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	link := s.start(host)
	browser, stop := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))...)
	defer stop()
	tab, end := chromedp.NewContext(browser)
	defer end()
	if err := chromedp.Do(tab); err != nil { // the browser lives as long as the context of its first step
		t.Fatal(err)
	}
	s.run(tab, chromedp.Navigate(link), chromedp.WaitVisible("main h1"))

	for _, args := range [][]string{{"--all-namespaces"}, {"--namespace=shop", "deployment/broken"}, {"--namespace=many", "deployment/idle"}} {
		began := time.Now()
		output, _ := host.Kedge(t.Context(), append([]string{"why"}, args...)...).CombinedOutput()
		t.Logf("kedge why %v took %s, and printed %d bytes", args, time.Since(began).Round(time.Millisecond), len(output)) // for people
	}
	t.Run("pages", func(t *testing.T) { s.in(t).pages(tab) })
	t.Run("narrow and dark", func(t *testing.T) { s.in(t).narrow(tab) })
	t.Run("keyboard", func(t *testing.T) { s.in(t).keyboard(tab) })
	t.Run("log", func(t *testing.T) { s.in(t).log(tab) })
	t.Run("terminal", func(t *testing.T) { s.in(t).terminal(tab) })
	t.Run("terminals that do not open", func(t *testing.T) { s.in(t).noTerminal(tab, host) })
	t.Run("actions", func(t *testing.T) { s.in(t).actions(tab) })
	t.Run("without JavaScript", func(t *testing.T) { s.in(t).plain(tab) })
	t.Run("API restarts", func(t *testing.T) { s.in(t).restart(tab) })
}

// in returns s for a part of the test.
func (s *seen) in(t *testing.T) *seen {
	part := *s
	own := *s.Cluster
	own.T, part.Cluster = t, &own
	return &part
}

// flood makes thousands of Events.
func (s *seen) flood() {
	s.Helper()
	config := s.Server.RESTConfig()
	config.QPS = -1
	now := metav1.Now()
	for i := range manyEvents {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "many", Name: fmt.Sprint("event-", i)},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "many", Name: fmt.Sprint("pod-", i%50)},
			Reason:         "Flood", Message: fmt.Sprint("Event ", i, " of many"), Type: corev1.EventTypeNormal,
			FirstTimestamp: now, LastTimestamp: metav1.NewTime(now.Add(-time.Duration(i) * time.Second / 2)), Count: 1,
		}
		if _, err := s.Client.CoreV1().Events("many").Create(s.Context(), event, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
	}
}

// start starts `kedge console` on the host, and makes its page reachable at the same address of this machine.
func (s *seen) start(host *harness.Host, args ...string) (link string) {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	s.page = "http://" + listener.Addr().String()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	ctx, cancel := context.WithCancel(context.Background())
	command := host.Kedge(ctx, append([]string{"console", "--port=" + port}, args...)...)
	output, err := command.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := command.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		cancel()
		_ = command.Wait() // it was killed
		listener.Close()
	})
	text := make([]byte, 4096)
	n, err := output.Read(text)
	if err != nil {
		s.Fatal(err)
	}
	link = regexp.MustCompile(`http://\S+`).FindString(string(text[:n]))
	if !strings.HasPrefix(link, s.page) {
		s.Fatalf("kedge console prints %q", text[:n])
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				there, err := host.DialContext(ctx, "tcp", "127.0.0.1:"+port)
				if err != nil {
					return
				}
				defer there.Close()
				go func() {
					_, _ = io.Copy(there, conn)
					there.Close()
				}()
				_, _ = io.Copy(conn, there)
			}()
		}
	}()
	return link
}

// step is something that the browser does.
type step = chromedp.Action[chromedp.Void]

// run has the browser do something.
func (s *seen) run(tab context.Context, steps ...step) {
	s.Helper()
	ask(s, tab, chromedp.Steps(steps...))
}

// ask has the browser do something, and returns what comes of it.
func ask[T any](s *seen, tab context.Context, action chromedp.Action[T]) T {
	s.Helper()
	ctx, cancel := context.WithTimeout(tab, harness.Slowly(time.Minute))
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		s.Fatal(err)
	}
	return result
}

// evaluated returns the value of an expression of the page.
func evaluated[T any](s *seen, tab context.Context, expression string) T {
	s.Helper()
	return ask(s, tab, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// command is a command of the protocol of Chromium.
func command[P any](c cdp.Command[P, cdp.Empty], params P) step {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, c, params)
		return chromedp.Void{}, err
	}
}

// open opens a page and returns its text.
func (s *seen) open(tab context.Context, path string) (text string) {
	s.Helper()
	s.run(tab, chromedp.Navigate(s.page+path), chromedp.WaitVisible("main h1"))
	return ask(s, tab, chromedp.Text("body"))
}

// picture keeps a screenshot for people.
func (s *seen) picture(tab context.Context, name string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.pictures, name+".png"), ask(s, tab, chromedp.FullScreenshot(100)), 0o644); err != nil {
		s.Fatal(err)
	}
}

// accessible has axe-core look for what keeps people with a screen reader, or bad eyes, from using the page.
func (s *seen) accessible(tab context.Context, path string) {
	s.Helper()
	evaluated[int](s, tab, s.axe+"; 0")
	for _, fault := range evaluated[[]string](s, tab,
		`axe.run().then(r => r.violations.filter(v => v.impact === "serious" || v.impact === "critical").map(v => v.id + ": " + v.help + ": " + v.nodes[0].html))`) {
		s.Errorf("%s: %s", path, fault)
	}
}

// all are the pages, with what each must show.
func (s *seen) all() map[string][]string {
	return map[string][]string{
		"/":                                    {"What is wrong", "shop deployment/broken", "What to do:", "server-1", "What has changed"},
		"/namespaces":                          {"shop", "many"},
		"/namespaces/shop":                     {"deployment/web", "2 of 2 ready", "pod/talker", "ImagePull"},
		"/namespaces/many":                     {"deployment/idle", "0 of 300 ready"},
		"/namespaces/shop/map":                 {"ingress/front leads to service/web", "service/web leads to deployment/web"},
		"/namespaces/shop/deployment/broken":   {"Why it does not work", "no address for the registry nowhere.test", "Restart", "Scale"},
		"/namespaces/shop/pod/talker":          {"The way that it took", "running", "Delete"},
		"/namespaces/shop/pod/talker/terminal": {"Program", "kubectl -n shop exec -it talker -c main -- sh"},
		"/namespaces/shop/pod/talker/yaml":     {"kind: Pod", "nodeName: server-1"},
		"/nodes":                               {"server-1", "ready"},
		"/nodes/server-1":                      {"processors busy", "memory in use", "start", "Cordon"},
		"/volumes":                             {"shop data", "Pending"},
		"/events":                              {"A bar leads to its part of the time"},
	}
}

// name makes the name of a file from the path of a page.
func name(path string) string {
	return strings.Trim(strings.ReplaceAll("overview"+path, "/", "-"), "-")
}

func (s *seen) pages(tab context.Context) {
	for path, wants := range s.all() {
		s.Eventually("the page "+path, func() error {
			text := strings.ToLower(s.open(tab, path))
			for _, want := range wants {
				if !strings.Contains(text, strings.ToLower(want)) {
					return fmt.Errorf("it lacks %q:\n%.2000s", want, text)
				}
			}
			return nil
		})
		s.picture(tab, name(path))
		s.accessible(tab, path)
	}
}

func (s *seen) narrow(tab context.Context) {
	dark := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}}
	s.run(tab, chromedp.EmulateViewport(360, 740), command(emulation.SetEmulatedMedia, dark))
	defer s.run(tab, chromedp.EmulateReset(), command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{}))
	for path := range s.all() {
		s.open(tab, path)
		if over := evaluated[int](s, tab, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
			s.Errorf("%s is %d pixels wider than a screen of 360", path, over)
		}
		s.picture(tab, name(path)+"-narrow")
		s.accessible(tab, path)
	}
}

// keyboard goes from the overview to a pod without a mouse.
func (s *seen) keyboard(tab context.Context) {
	s.open(tab, "/")
	// The first stop is the link past the list of pages.
	s.run(tab, chromedp.KeyEvent(kb.Tab))
	if first := evaluated[string](s, tab, `document.activeElement.textContent`); first != "Skip to the content" {
		s.Errorf("the first stop of the keyboard is %q", first)
	}
	for _, want := range []string{"Namespaces", "shop", "talker"} {
		s.press(tab, want)
	}
	s.Eventually("the page of the pod", func() error {
		title := ask(s, tab, chromedp.Title())
		if !strings.HasPrefix(title, "pod/talker") {
			return errors.New("the title is " + title)
		}
		return nil
	})
}

// press goes to a link by the tab key, and opens it.
func (s *seen) press(tab context.Context, text string) {
	s.Helper()
	s.run(tab, chromedp.WaitVisible("main h1"))
	for range 100 {
		s.run(tab, chromedp.KeyEvent(kb.Tab))
		at := evaluated[string](s, tab, `document.activeElement.textContent`)
		if !evaluated[bool](s, tab, `getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
			s.Errorf("%q does not show that it has the focus", at)
		}
		if at == text {
			s.run(tab, chromedp.KeyEvent(kb.Enter), chromedp.Sleep(time.Second))
			return
		}
	}
	s.Fatalf("the keyboard does not come to %q", text)
}

// log follows a log, which has scripts and codes of a terminal in it.
func (s *seen) log(tab context.Context) {
	s.open(tab, "/namespaces/shop/pod/talker/log")
	count := func() int {
		return evaluated[int](s, tab, `document.getElementById("log").textContent.split("\n").length`)
	}
	before := count()
	s.Eventually("new lines", func() error {
		if now := count(); now < before+4 {
			return fmt.Errorf("there are %d lines, after %d", now, before)
		}
		return nil
	})
	title, text := ask(s, tab, chromedp.Title()), ask(s, tab, chromedp.Text("#log"))
	if !strings.HasPrefix(title, "Log of pod/talker") || !strings.Contains(text, "<script>document.title=1</script>") || strings.Contains(text, "\x1b") {
		s.Errorf("the title is %q, and the log %.200q", title, text)
	}
	s.picture(tab, "log")
}

// actions scales a Deployment, and deletes a pod, each after a question.
func (s *seen) actions(tab context.Context) {
	s.open(tab, "/namespaces/shop/deployment/web/do/scale")
	s.picture(tab, "question")
	s.accessible(tab, "the question")
	s.run(tab, chromedp.SendKeys("#number", "3"), chromedp.Click("button"), chromedp.WaitVisible(".steps"))
	s.Eventually("three pods", func() error {
		if text := s.open(tab, "/namespaces/shop"); !strings.Contains(text, "3 of 3 ready") {
			return errors.New(text)
		}
		return nil
	})
	s.open(tab, "/namespaces/shop/pod/talker/do/delete")
	s.run(tab, chromedp.Click("button"), chromedp.WaitVisible("h2"))
	s.Eventually("the pod to be gone", func() error {
		if text, err := s.TryKubectl("", "get", "pod", "talker", "--namespace=shop"); err == nil {
			return errors.New(text)
		}
		return nil
	})
	// A page that is open shows by itself what has changed.
	s.open(tab, "/namespaces")
	s.Kubectl("create", "namespace", "later")
	s.run(tab, chromedp.WaitVisible(`a[href="/namespaces/later"]`))
}

// plain reads the pages without JavaScript.
func (s *seen) plain(tab context.Context) {
	s.run(tab, command(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	defer s.run(tab, command(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{}))
	for path := range s.all() {
		if strings.Contains(path, "talker") {
			continue // it was deleted
		}
		s.run(tab, chromedp.Navigate(s.page+path))
		html := ask(s, tab, chromedp.OuterHTML("html"))
		if !strings.Contains(html, "<h1>") || len(html) < 1000 {
			s.Errorf("%s has %q", path, html)
		}
	}
}

// restart restarts the server. The page says that the API does not answer, and comes back by itself.
func (s *seen) restart(tab context.Context) {
	s.open(tab, "/nodes")
	s.Server.Terminate()
	s.run(tab, chromedp.WaitVisible("main [role=alert]"))
	text := ask(s, tab, chromedp.Text("main [role=alert]"))
	if !strings.Contains(text, "connection refused") {
		s.Errorf("while the API is away, the page says %q", text)
	}
	s.picture(tab, "api-away")
	s.Server.Start()
	s.Server.WaitReady()
	s.run(tab, chromedp.WaitVisible(`main a[href="/nodes/server-1"]`))
	s.run(tab, chromedp.Reload(), chromedp.WaitVisible(`main a[href="/nodes/server-1"]`))
}
