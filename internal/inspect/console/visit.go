package console

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kedge-dev/kedge/internal/inspect/why"
)

//go:embed assets
var assets embed.FS

// templates are the pages. html/template escapes every string of the cluster. They are read when a page is drawn for the first
// time: other commands, and a server, have this package in the executable, too.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"pages": func() map[string]string {
			return map[string]string{"/": "Overview", "/namespaces": "Namespaces", "/nodes": "Nodes", "/volumes": "Volumes", "/events": "Events"}
		},
		"since":      func(at, now time.Time) string { return duration.HumanDuration(now.Sub(at)) },
		"clock":      func(at time.Time) string { return at.Local().Format("Mon 15:04:05") },
		"iso":        func(at time.Time) string { return at.UTC().Format(time.RFC3339) },
		"lower":      strings.ToLower,
		"ports":      func(service corev1.Service) string { return ports(&service) },
		"path":       path,
		"objectLink": objectLink,
		// These give a part of a page what it needs besides its rows.
		"rows":    func(pods []podRow, now time.Time, everywhere bool) any { return podTable{pods, now, everywhere} },
		"nodesOf": func(rows []nodeRow, now time.Time) any { return nodeTable{rows, now} },
	}).ParseFS(assets, "assets/*.html"))
})

// view makes the data of a page.
type view struct {
	// name is that of the template.
	name  string
	title func(*visit) string
	data  func(*visit) any
}

// visit is one look at a page.
type visit struct {
	*Console
	ctx     context.Context
	request *http.Request
	now     time.Time
	// hidden is what the user may not read, and fault why nothing can be shown.
	hidden []string
	fault  error
}

func (c *Console) visit(r *http.Request) *visit {
	return &visit{Console: c, ctx: r.Context(), request: r, now: c.Clients.Now()}
}

// value returns a part of the page's path.
func (v *visit) value(name string) string { return v.request.PathValue(name) }

// note takes in an error of the API, and returns false if there is one. If the user may not read something, the page says so.
// If an object does not exist, the page leaves it out. Any other error is the fault of the whole page.
func (v *visit) note(what string, err error) bool {
	switch {
	case err == nil:
		return true
	case apierrors.IsForbidden(err):
		if !slices.Contains(v.hidden, what) {
			v.hidden = append(v.hidden, what)
		}
	case apierrors.IsNotFound(err):
	case v.fault == nil:
		v.fault = fmt.Errorf("read %s: %w", what, err)
	}
	return false
}

// most is how many objects of a kind are read. Nobody looks through more of them on a page.
const most = 5000

// listed lists objects. The watch cache answers, which is new enough for people and costs little.
func listed[L any](v *visit, what string, list func(context.Context, metav1.ListOptions) (L, error)) (all L) {
	if v.fault != nil {
		return all
	}
	read, err := list(v.ctx, metav1.ListOptions{ResourceVersion: "0", Limit: most})
	if v.note(what, err) {
		all = read
	}
	return all
}

// shown is what the layout gets.
type shown struct {
	Title, Cluster, Path string
	Main                 template.HTML
	Hidden               []string
	Fault                string
	Missing              bool
}

// render makes the part of a page that changes.
func (c *Console) render(w view, r *http.Request) shown {
	v := c.visit(r)
	data := w.data(v)
	s := shown{Title: w.title(v), Cluster: c.Cluster, Path: r.URL.Path, Hidden: v.hidden}
	if v.fault == nil && data != nil {
		text, err := draw(w.name, data)
		if err != nil {
			v.fault = err
		}
		s.Main = template.HTML(text) //nolint:gosec // the template has escaped it
	}
	if v.fault != nil {
		s.Fault, s.Main = v.fault.Error(), ""
	}
	s.Missing = v.fault == nil && data == nil
	return s
}

// page serves a view: as a page, or as a stream of its main part.
func (c *Console) page(w view) http.HandlerFunc {
	return func(out http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			c.stream(out, r, w)
			return
		}
		status, s := http.StatusOK, c.render(w, r)
		switch {
		case s.Fault != "":
			status = http.StatusBadGateway
		case s.Missing:
			status = http.StatusNotFound
		}
		c.answer(out, status, s)
	}
}

// answer sends a whole page.
func (c *Console) answer(out http.ResponseWriter, status int, s shown) {
	text, err := draw("layout", s)
	if err != nil {
		c.Log.WithError(err).Warn("A page cannot be drawn")
		status = http.StatusInternalServerError
	}
	out.Header().Set("Content-Type", "text/html; charset=utf-8")
	out.WriteHeader(status)
	_, _ = io.WriteString(out, text) // the browser may have left
}

// draw fills in a template. It leaves out characters that cannot be seen: some of them control a terminal into which the user
// may copy the text, and others turn the direction of writing.
func draw(name string, data any) (string, error) {
	var text strings.Builder
	if err := templates().ExecuteTemplate(&text, name+".html", data); err != nil {
		return "", fmt.Errorf("draw page: %w", err)
	}
	return printable(text.String()), nil
}

// pace is the time between two looks at a page that stays open.
const pace = 3 * time.Second

// stream sends the main part of a page whenever it has changed, until the browser leaves.
func (c *Console) stream(out http.ResponseWriter, r *http.Request, w view) {
	events := newEventStream(out)
	var last [sha256.Size]byte
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		text, err := draw("main", c.render(w, r))
		if err != nil {
			c.Log.WithError(err).Warn("A page cannot be drawn")
			return
		}
		sum := sha256.Sum256([]byte(text))
		name, body := "main", text
		if sum == last {
			name, body = "same", "" // so that the browser knows that the link holds
		}
		last = sum
		if !events.send(name, body) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// eventStream sends server-sent events.
type eventStream struct {
	out     http.ResponseWriter
	control *http.ResponseController
}

func newEventStream(out http.ResponseWriter) *eventStream {
	out.Header().Set("Content-Type", "text/event-stream")
	return &eventStream{out, http.NewResponseController(out)}
}

// send sends an event. The body is encoded, because it may have any bytes. It returns false when the browser has left.
func (e *eventStream) send(name, body string) bool {
	_, err := fmt.Fprintf(e.out, "event: %s\ndata: %s\n\n", name, base64.StdEncoding.EncodeToString([]byte(body)))
	return err == nil && e.control.Flush() == nil
}

// printable returns a text without what cannot be seen, besides the ends of lines.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// path returns the path of a page: of a namespace, a pod, a node and so on. The parts may be anything.
func path(parts ...string) string {
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/" + strings.Join(parts, "/")
}

// objectLink returns the page of an object, or nothing if it has none.
func objectLink(o why.Object) string {
	kind := strings.ToLower(o.Kind)
	switch _, known := kinds[kind]; {
	case o.Kind == "Node":
		return path("nodes", o.Name)
	case o.Kind == "Namespace":
		return path("namespaces", o.Name)
	case known && o.Namespace != "":
		return path("namespaces", o.Namespace, kind, o.Name)
	}
	return ""
}
