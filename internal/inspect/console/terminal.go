package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/inspect/console/screen"
)

// usual is the program that a terminal runs unless the user names another one.
const usual = "sh"

// hint returns the command of kubectl that does what a terminal of the page does.
func hint(namespace, pod, container string, command []string) string {
	words := []string{"kubectl -n", foreigntext.Argument(namespace), "exec -it", foreigntext.Argument(pod), "-c", foreigntext.Argument(container), "--"}
	for _, word := range command {
		words = append(words, foreigntext.Argument(word))
	}
	return strings.Join(words, " ")
}

// podTerminal offers to open a terminal in a container that runs.
var podTerminal = view{"open", func(v *visit) string { return "Terminal in pod/" + v.value("name") }, func(v *visit) any {
	namespace, name := v.value("namespace"), v.value("name")
	pod, err := v.Clients.Kubernetes.CoreV1().Pods(namespace).Get(v.ctx, name, metav1.GetOptions{})
	if !v.note("pods", err) {
		return nil
	}
	shown := struct {
		Namespace, Name, Container, Command, Hint string
		Containers                                []containerRow
	}{Namespace: namespace, Name: name, Container: v.request.FormValue("container"), Command: usual}
	for _, row := range containers(pod) {
		if row.State == running {
			shown.Containers = append(shown.Containers, row)
		}
	}
	if shown.Container == "" && len(shown.Containers) > 0 {
		shown.Container = shown.Containers[len(shown.Containers)-1].Name
		for _, row := range shown.Containers {
			if row.Name == pod.Spec.Containers[0].Name {
				shown.Container = row.Name
			}
		}
	}
	shown.Hint = hint(namespace, name, shown.Container, []string{usual})
	return shown
}}

// openTerminal starts a program in a container, and leads to the page that shows it.
func (c *Console) openTerminal(w http.ResponseWriter, r *http.Request) {
	command := strings.Fields(r.FormValue("command"))
	if len(command) == 0 {
		command = []string{usual}
	}
	s, err := c.shells.start(r.PathValue("namespace"), r.PathValue("name"), r.FormValue("container"), command)
	if err != nil {
		c.answer(w, http.StatusConflict, shown{Title: "Terminal", Cluster: c.Cluster, Path: r.URL.Path, Fault: err.Error()})
		return
	}
	c.Log.Infof("%s in pod %s of namespace %s", strings.Join(command, " "), s.Pod, s.Namespace)
	http.Redirect(w, r, path("terminals", s.ID), http.StatusSeeOther)
}

// terminal shows the screen of a program.
var terminal = view{"terminal", func(v *visit) string {
	if s := v.shells.find(v.value("id")); s != nil {
		return "Terminal in pod/" + s.Pod
	}
	return "Terminal"
}, func(v *visit) any {
	s := v.shells.find(v.value("id"))
	if s == nil {
		return struct{ ID string }{}
	}
	return struct {
		*shell
		Program, Hint string
	}{s, strings.Join(s.Command, " "), hint(s.Namespace, s.Pod, s.Container, s.Command)}
}}

// endTerminal ends a program.
func (c *Console) endTerminal(w http.ResponseWriter, r *http.Request) {
	to := "/"
	if s := c.shells.find(r.PathValue("id")); s != nil {
		to = path("namespaces", s.Namespace, "pod", s.Pod)
		s.end()
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// mostTyped is how many bytes of keys a request may have. The page sends a longer text in pieces.
const mostTyped = 1 << 20

// typed takes keys for a program, and resized the size of its page.
func (c *Console) typed(w http.ResponseWriter, r *http.Request) {
	var keys []screen.Key
	c.takeFor(w, r, &keys, func(s *shell) bool { return s.enter(r.Context(), keys) })
}

func (c *Console) resized(w http.ResponseWriter, r *http.Request) {
	var size struct{ Rows, Columns int }
	c.takeFor(w, r, &size, func(s *shell) bool {
		s.resize(size.Rows, size.Columns)
		return true
	})
}

// takeFor reads what a page sends, and gives it to the program. The answer 410 says that the program has ended.
func (c *Console) takeFor(w http.ResponseWriter, r *http.Request, what any, give func(*shell) bool) {
	s := c.shells.find(r.PathValue("id"))
	if s == nil {
		http.Error(w, "there is no such terminal", http.StatusGone)
		return
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostTyped)).Decode(what); err != nil {
		http.Error(w, fmt.Sprintf("read keys: %v", err), http.StatusBadRequest)
		return
	}
	if !give(s) {
		http.Error(w, "the program has ended", http.StatusGone)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// framePace is the shortest time between two frames.
const framePace = 30 * time.Millisecond

// watchTerminal sends the screen of a program when it has changed, and at last how the program has ended.
func (c *Console) watchTerminal(out http.ResponseWriter, r *http.Request) {
	s, leave := c.shells.watch(r.PathValue("id"))
	events := newEventStream(out)
	if s == nil {
		events.send("end", "There is no such terminal any more.")
		return
	}
	defer leave()
	w := &watcher{sent: map[int]string{}}
	for ended := false; ; {
		_, changed := s.changed.Get()
		began := time.Now()
		text, err := w.frame(s)
		if err != nil {
			c.Log.WithError(err).Warn("A screen cannot be drawn")
			return
		}
		if !events.send("screen", text) {
			return
		}
		if ended {
			events.send("end", s.verdict)
			return
		}
		select { // a screen that takes long to draw is drawn less often
		case <-r.Context().Done():
			return
		case <-time.After(max(framePace, 3*time.Since(began))):
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.done:
			ended = true
		case <-changed:
		}
	}
}

// watcher knows which lines a page has.
type watcher struct {
	begun bool
	// sent are the lines of the screen that the page has, by their IDs.
	sent map[int]string
	// next is the number of the next line of the past that the page gets, and cleared is that of the last frame.
	next, cleared int
}

// frameLine is a line of a frame. HTML is nil if the page has it.
type frameLine struct {
	ID   int     `json:"id"`
	HTML *string `json:"html,omitempty"`
}

// frame is what the page gets: lines that have left the screen since the last frame, and all lines of the screen.
type frame struct {
	// Clear is true if the page is to forget all lines that it has.
	Clear bool        `json:"clear"`
	Past  []frameLine `json:"past"`
	Lines []frameLine `json:"lines"`
}

// frame returns the next frame as JSON.
func (w *watcher) frame(s *shell) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	view := s.screen.Look()
	f := frame{Clear: !w.begun || view.Cleared != w.cleared}
	if f.Clear {
		w.begun, w.cleared, w.next = true, view.Cleared, 0
		clear(w.sent)
	}
	sent := map[int]string{}
	line := func(l *screen.Line) (frameLine, error) {
		if l.Drawn == "" {
			text, err := draw("line", runsOf(s.screen.Runs(l)))
			if err != nil {
				return frameLine{}, err
			}
			l.Drawn = text // it ends with a newline, so it is never ""
		}
		sent[l.ID] = l.Drawn
		if w.sent[l.ID] == l.Drawn {
			return frameLine{ID: l.ID}, nil
		}
		html := strings.TrimSuffix(l.Drawn, "\n")
		return frameLine{l.ID, &html}, nil
	}
	past := view.Past[min(max(w.next-view.Gone, 0), len(view.Past)):]
	for _, to := range []struct {
		lines []*screen.Line
		frame *[]frameLine
	}{{past, &f.Past}, {view.Lines, &f.Lines}} {
		*to.frame = make([]frameLine, 0, len(to.lines))
		for _, l := range to.lines {
			drawn, err := line(l)
			if err != nil {
				return "", err
			}
			*to.frame = append(*to.frame, drawn)
		}
	}
	w.next, w.sent = view.Gone+len(view.Past), sent
	text, err := json.Marshal(f)
	return string(text), err
}

// drawnRun is a part of a line with its classes of style.css.
type drawnRun struct{ Text, Class string }

func runsOf(runs []screen.Run) (drawn []drawnRun) {
	for _, run := range runs {
		drawn = append(drawn, drawnRun{run.Text, classOf(run)})
	}
	return drawn
}

// classOf returns the classes of a style. Every text can be read on every background that there is.
func classOf(run screen.Run) string {
	style, classes := run.Style, []string(nil)
	add := func(on bool, class string) {
		if on {
			classes = append(classes, class)
		}
	}
	front, back := style.Front, style.Back
	if style.Inverse && front != 0 {
		front, back = back, front
	}
	add(run.Cursor, "cursor")
	add(style.Inverse && style.Front == 0, "inverse")
	add(front != 0, "f"+strconv.Itoa(int(front)))
	add(back != 0, "b"+strconv.Itoa(int(back)))
	add(style.Bold, "bold")
	add(style.Italic, "italic")
	add(style.Underline, "underline")
	add(style.Struck, "struck")
	return strings.Join(classes, " ")
}
