package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/kedge-dev/kedge/internal/inspect/console/screen"
)

// fakeExec returns programs that tests play: each gets what the page has asked for, and ends with what play returns.
func fakeExec(play func(ctx context.Context, command []string, streams remotecommand.StreamOptions) error) Exec {
	return func(ctx context.Context, namespace, pod string, options *corev1.PodExecOptions, streams remotecommand.StreamOptions) error {
		if namespace != "shop" || pod != "web-1" || options.Container != "main" || !options.TTY || !options.Stdin || !options.Stdout || options.Stderr {
			return fmt.Errorf("exec in %s/%s: %+v", namespace, pod, options)
		}
		return play(ctx, options.Command, streams)
	}
}

// echo writes what it reads, and the sizes that it gets, until it reads "exit".
func echo(ctx context.Context, command []string, streams remotecommand.StreamOptions) error {
	fmt.Fprintf(streams.Stdout, "%q\r\n", command)
	go func() {
		for size := streams.TerminalSizeQueue.Next(); size != nil; size = streams.TerminalSizeQueue.Next() {
			fmt.Fprintf(streams.Stdout, "[%d rows, %d columns]\r\n", size.Height, size.Width)
		}
	}()
	for buffer := make([]byte, 3); ; {
		n, err := streams.Stdin.Read(buffer)
		if err != nil {
			return ctx.Err()
		}
		_, _ = streams.Stdout.Write(buffer[:n])
		if strings.Contains(string(buffer[:n]), "\x04") {
			return utilexec.CodeExitError{Err: errors.New("command terminated"), Code: 3}
		}
	}
}

// term is a terminal as the page sees it.
type term struct {
	*site
	at    string
	next  func() event
	lines map[int]string
	shown []string
	past  []string
}

// terminal opens a terminal.
func (s *site) terminal(command string) *term {
	s.Helper()
	at := s.started(command)
	return &term{site: s, at: at, next: s.open(at + "/screen"), lines: map[int]string{}}
}

// started starts a program, and returns its address.
func (s *site) started(command string) string {
	s.Helper()
	status, body := s.send(s.request(http.MethodPost, "/namespaces/shop/pod/web-1/terminal", "container=main&command="+command))
	at := regexp.MustCompile(`data-at="(/terminals/\w+)"`).FindStringSubmatch(body)
	if status != http.StatusOK || at == nil {
		s.Fatalf("a terminal: %d: %s", status, body)
	}
	return at[1]
}

// take takes in the next frame. It returns the sentence of the end.
func (t *term) take() (end string) {
	t.Helper()
	e := t.next()
	if e.name == "end" {
		return e.body
	}
	var f frame
	if err := json.Unmarshal([]byte(e.body), &f); err != nil || e.name != "screen" {
		t.Fatalf("%+v: %v", e, err)
	}
	if f.Clear {
		t.lines, t.past = map[int]string{}, nil
	}
	read := func(lines []frameLine) (read []string) {
		for _, l := range lines {
			if l.HTML != nil {
				t.lines[l.ID] = *l.HTML
			}
			text, known := t.lines[l.ID]
			if !known {
				t.Fatalf("the page does not have line %d", l.ID)
			}
			read = append(read, text)
		}
		return read
	}
	t.past = append(t.past, read(f.Past)...)
	t.shown = read(f.Lines)
	for id := range t.lines { // the page forgets the others
		keep := false
		for _, l := range f.Lines {
			keep = keep || l.ID == id
		}
		if !keep {
			delete(t.lines, id)
		}
	}
	return ""
}

// until takes frames until a text is on the screen, or in the sentence of the end.
func (t *term) until(want string) {
	t.Helper()
	for {
		end := t.take()
		if strings.Contains(strings.Join(append(t.shown, end), "\n"), want) {
			return
		}
		if end != "" {
			t.Fatalf("%q does not come. The terminal shows\n%s\n%s", want, strings.Join(t.shown, "\n"), end)
		}
	}
}

func (t *term) post(path string, body any) int {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	status, _ := t.send(t.request(http.MethodPost, t.at+path, string(text)))
	return status
}

func (t *term) types(text string) {
	t.Helper()
	if status := t.post("/keys", []screen.Key{{Text: text}}); status != http.StatusNoContent {
		t.Errorf("typing answers %d", status)
	}
}

// A terminal shows what the program writes, and the program gets what is typed. It tells how the program has ended.
func TestTerminal(t *testing.T) {
	s := serve(t, objects()...)
	s.console.shells.exec = fakeExec(echo)
	terminal := s.terminal("sh+-l")
	terminal.until(`[&#34;sh&#34; &#34;-l&#34;]`)
	terminal.types("<script>\x1b[1;31mred")
	terminal.until(`&lt;script&gt;<span class="f2 bold">red</span>`)
	if status := terminal.post("/size", map[string]int{"rows": 4, "columns": 9999}); status != http.StatusNoContent {
		t.Errorf("the size: %d", status)
	}
	terminal.until("[4 rows, 400 columns]")
	terminal.types(strings.Repeat("line\v\r", 50) + "last")
	terminal.until("last")
	if len(terminal.shown) != 4 || len(terminal.past) < 50 {
		t.Errorf("there are %d lines, after %d", len(terminal.shown), len(terminal.past))
	}
	// A page that comes again gets all lines again.
	again := &term{site: s, at: terminal.at, next: s.open(terminal.at + "/screen"), lines: map[int]string{}}
	again.until("last")
	if len(again.past) != len(terminal.past) {
		t.Errorf("another page gets %d old lines of %d", len(again.past), len(terminal.past))
	}
	if status := terminal.post("/keys", []screen.Key{{Name: "d", Control: true}}); status != http.StatusNoContent {
		t.Errorf("a key: %d", status)
	}
	terminal.until("The program has ended with exit status 3.")
	if status := terminal.post("/keys", []screen.Key{{Text: "x"}}); status != http.StatusGone {
		t.Errorf("typing after the end: %d", status)
	}
	for body, want := range map[string]int{"x": 400, `[{"text":"` + strings.Repeat("x", mostTyped) + `"}]`: 400, `[]`: 410} {
		if status, _ := s.send(s.request(http.MethodPost, terminal.at+"/keys", body)); status != want {
			t.Errorf("%.20s answers %d, want %d", body, status, want)
		}
	}
}

// The page of a pod leads to a terminal in each container that runs.
func TestTerminalPages(t *testing.T) {
	s := serve(t, objects()...)
	s.console.shells.exec = fakeExec(echo)
	if _, body := s.get("/namespaces/shop/pod/web-1/terminal"); !strings.Contains(body, "No container of the pod runs.") {
		t.Errorf("a pod that waits: %s", body)
	}
	pods := s.api.CoreV1().Pods("shop")
	pod, err := pods.Get(t.Context(), "web-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	at := s.started("sh")
	for path, want := range map[string]string{
		"/namespaces/shop/pod/web-1":                                    `href="/namespaces/shop/pod/web-1/terminal?container=main"`,
		"/namespaces/shop/pod/web-1/terminal":                           `name="container" value="main"`,
		"/namespaces/shop/pod/web-1/terminal?container=main":            "kubectl -n shop exec -it web-1 -c main -- sh",
		"/namespaces/shop/pod/web-1/terminal?container=%24%28reboot%29": "-c &#39;$(reboot)&#39; -- sh",
		at:                   "pod/web-1</a> · container main · sh",
		"/terminals/unknown": "This terminal has ended.",
		"/terminal.js":       "ResizeObserver",
	} {
		if status, body := s.get(path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s answers %d, and lacks %q:\n%s", path, status, want, body)
		}
	}
	s.browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if status, _ := s.send(s.request(http.MethodPost, at+"/end", "x=y")); status != http.StatusSeeOther {
		t.Errorf("the end: %d", status)
	}
	<-s.console.shells.find(strings.TrimPrefix(at, "/terminals/")).done
	if next := s.open("/terminals/unknown/screen"); next().name != "end" {
		t.Error("an unknown terminal has a screen")
	}
}

// Each way in which a program does not run, or ends, is a sentence.
func TestVerdict(t *testing.T) {
	s := serve(t, objects()...)
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, "The program has ended with exit status 0."},
		{fmt.Errorf("exec: %w", utilexec.CodeExitError{Code: 127}), "The program has ended with exit status 127."},
		{errors.New(refusal + `pods "web-1" is forbidden: no`), `You may not run programs in this pod: pods "web-1" is forbidden: no`},
		{errors.New("no \x1b[31m<b>\n" + strings.Repeat("x", 1000)), "The program does not run: no [31m<b> xxx"},
	} {
		s.console.shells.exec = fakeExec(func(context.Context, []string, remotecommand.StreamOptions) error { return test.err })
		terminal := s.terminal("sh")
		terminal.until(test.want)
	}
}

// A program ends when its page was left, unless the page comes back in time.
func TestLeaving(t *testing.T) {
	s := serve(t, objects()...)
	s.console.shells.exec = fakeExec(echo)
	s.console.shells.leaving = 0
	left, err := s.console.shells.start("shop", "web-1", "main", []string{"sh"})
	if err != nil {
		t.Fatal(err)
	}
	<-left.done // nobody has come
	s.console.shells.leaving = leaving
	id := strings.TrimPrefix(s.started("sh"), "/terminals/")
	first, leave := s.console.shells.watch(id)
	second, leaveToo := s.console.shells.watch(id)
	leave()
	s.console.shells.drop(first)
	if first.ctx.Err() != nil || second != first {
		t.Error("a program ends, although a page shows it")
	}
	leaveToo()
	s.console.shells.drop(first)
	<-first.done
	if s.console.shells.find(id) != nil || first.verdict != "The terminal was ended." {
		t.Errorf("the program is still there, or has ended otherwise: %q", first.verdict)
	}
}

// There is a limit to programs that run. Those that have ended do not count.
func TestMany(t *testing.T) {
	s := serve(t, objects()...)
	s.console.shells.exec = fakeExec(echo)
	var last string
	for range mostShells {
		last = s.started("sh")
	}
	status, body := s.send(s.request(http.MethodPost, "/namespaces/shop/pod/web-1/terminal", "container=main"))
	if status != http.StatusConflict || !strings.Contains(body, "8 terminals are open") {
		t.Errorf("one more: %d %s", status, body)
	}
	ended := s.console.shells.find(strings.TrimPrefix(last, "/terminals/"))
	ended.end()
	<-ended.done
	s.started("sh")
}

// A program that asks the terminal all the time, and never reads, holds nothing up. Typing waits until the page is left.
func TestDeaf(t *testing.T) {
	s := serve(t, objects()...)
	wrote := make(chan struct{})
	s.console.shells.exec = fakeExec(func(ctx context.Context, _ []string, streams remotecommand.StreamOptions) error {
		for range 100 {
			_, _ = io.WriteString(streams.Stdout, strings.Repeat("\x1b[6n", 1000))
		}
		close(wrote)
		<-ctx.Done()
		return ctx.Err()
	})
	terminal := s.terminal("sh")
	<-wrote
	shell := s.console.shells.find(strings.TrimPrefix(terminal.at, "/terminals/"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if shell.enter(ctx, []screen.Key{{Text: "x"}}) {
		t.Error("the program reads")
	}
}
