package volumedata

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"k8s.io/client-go/rest"
)

// kept is a Server that remembers.
type kept struct {
	node, volume string
	about        string
	content      []byte
	report       Report
	// broken is the error of an archive after its first half.
	broken, fault error
}

func (k *kept) Save(_ context.Context, node, volume string, about json.RawMessage, content io.Reader) error {
	if k.fault != nil {
		return k.fault
	}
	k.node, k.volume, k.about = node, volume, string(about)
	var err error
	k.content, err = io.ReadAll(content)
	return err
}

func (k *kept) Restore(_ context.Context, node, volume string, take func(Contents) error) error {
	if k.fault != nil {
		return k.fault
	}
	archive := io.Reader(bytes.NewReader(k.content))
	if k.broken != nil {
		archive = io.MultiReader(bytes.NewReader(k.content[:len(k.content)/2]), iotest.ErrReader(k.broken))
	}
	return take(Contents{About: json.RawMessage(k.about), Time: time.Unix(1, 0), Size: int64(len(k.content)), Archive: archive})
}

func (k *kept) Tell(_ context.Context, node, volume string, report Report) error {
	k.node, k.volume, k.report = node, volume, report
	return k.fault
}

// connect returns a client of a server, over HTTP/2 as between kedges.
func connect(t *testing.T, server Server) Server {
	t.Helper()
	listener := httptest.NewUnstartedServer(Handler(server, func(*http.Request) string { return "node-1" }))
	listener.EnableHTTP2 = true
	listener.StartTLS()
	t.Cleanup(listener.Close)
	return Client(&rest.Config{Host: listener.URL, Transport: listener.Client().Transport})
}

func TestContents(t *testing.T) {
	k := &kept{}
	c := connect(t, k)
	content := bytes.Repeat([]byte("0123456789"), 1<<20)
	if err := c.Save(t.Context(), "another node", "pvc-1", json.RawMessage(`{"size":1}`), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if k.node != "node-1" || k.volume != "pvc-1" || k.about != `{"size":1}` || !bytes.Equal(k.content, content) {
		t.Errorf("the server got %s of node %s, %s, %d bytes", k.volume, k.node, k.about, len(k.content))
	}
	var got []byte
	err := c.Restore(t.Context(), "", "pvc-1", func(contents Contents) (err error) {
		if string(contents.About) != k.about || contents.Size != int64(len(content)) || contents.Time.Unix() != 1 {
			t.Errorf("got %s, %d bytes of %s", contents.About, contents.Size, contents.Time)
		}
		got, err = io.ReadAll(contents.Archive)
		return err
	})
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if err := c.Tell(t.Context(), "", "pvc-1", Report{Fault: "no space"}); err != nil || k.report.Fault != "no space" {
		t.Errorf("told %+v, %v", k.report, err)
	}
}

// TestBreaksOff checks that neither side takes a part of the contents for all.
func TestBreaksOff(t *testing.T) {
	k := &kept{about: "{}", content: bytes.Repeat([]byte("x"), 1<<20), broken: errors.New("the backup is damaged")}
	c := connect(t, k)
	err := c.Restore(t.Context(), "", "pvc-1", func(contents Contents) error {
		_, err := io.ReadAll(contents.Archive)
		return err
	})
	if err == nil {
		t.Error("half of an archive was taken for all of it")
	}
	broken := io.MultiReader(strings.NewReader(strings.Repeat("y", 1<<20)), iotest.ErrReader(errors.New("the disk is broken")))
	if err := c.Save(t.Context(), "", "pvc-1", json.RawMessage("{}"), broken); err == nil || !strings.Contains(err.Error(), "the disk is broken") {
		t.Errorf("send what breaks off: %v", err)
	}
}

func TestRefused(t *testing.T) {
	k := &kept{fault: errors.New("the bucket is full")}
	c := connect(t, k)
	if err := c.Save(t.Context(), "", "pvc-1", json.RawMessage("{}"), strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "the bucket is full") {
		t.Errorf("got %v, want the server's reason", err)
	}
	k.fault = ErrNotAsked
	taken := func(Contents) error { return errors.New("taken") }
	for what, err := range map[string]error{
		"save":    c.Save(t.Context(), "", "pvc-1", json.RawMessage("{}"), strings.NewReader("x")),
		"restore": c.Restore(t.Context(), "", "pvc-1", taken),
		"tell":    c.Tell(t.Context(), "", "pvc-1", Report{}),
		// The name of a volume cannot lead to another route.
		"a strange name": c.Tell(t.Context(), "", "../../join", Report{}),
	} {
		if !errors.Is(err, ErrNotAsked) {
			t.Errorf("%s: %v, want %v", what, err, ErrNotAsked)
		}
	}
}

// TestHandlerRefuses checks requests that no node of kedge makes.
func TestHandlerRefuses(t *testing.T) {
	handler := Handler(&kept{}, func(*http.Request) string { return "node-1" })
	for name, request := range map[string]struct {
		method, path, body string
		want               int
	}{
		"no volume":             {http.MethodGet, Path, "", http.StatusNotFound},
		"a path":                {http.MethodGet, Path + "a/b", "", http.StatusNotFound},
		"another method":        {http.MethodDelete, Path + "a", "", http.StatusMethodNotAllowed},
		"no description":        {http.MethodPut, Path + "a", "", http.StatusConflict},
		"an endless one":        {http.MethodPut, Path + "a", strings.Repeat("a", 2*maxHead), http.StatusConflict},
		"one that is not JSON":  {http.MethodPut, Path + "a", "{\n", http.StatusConflict},
		"a report without JSON": {http.MethodPost, Path + "a", "x", http.StatusConflict},
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(request.method, request.path, strings.NewReader(request.body)))
		if answer.Code != request.want {
			t.Errorf("%s: status %d, want %d", name, answer.Code, request.want)
		}
	}
}
