// Package volumedata carries the contents of volumes between a node and the server that keeps their backup. The server tells a node by
// annotations of its PersistentVolumes what to carry. Package supervisor serves the handler.
package volumedata

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// Path is where servers serve it. The name of the volume follows.
const Path = "/v1-kedge/node/volumes/"

// The annotations of a PersistentVolume by which a server tells the volume's node what to do. Nodes cannot write them.
const (
	// BackupAnnotation asks for the contents. Its value is the namespace and name of a VolumeBackup.
	BackupAnnotation = "kedge.dev/backup-order"
	// RestoreAnnotation says that the contents can be had if the volume is not there. Its value is the time that they are of.
	RestoreAnnotation = "kedge.dev/restore-order"
)

// ErrNotAsked is the answer to a node that has nothing to carry, or not any more.
var ErrNotAsked = errors.New("the server has not asked for this volume, or not any more")

// Server is what a node calls.
type Server interface {
	// Save keeps the contents of a volume of the node. about describes the volume to Restore.
	Save(ctx context.Context, node, volume string, about json.RawMessage, content io.Reader) error
	// Restore calls take with the contents of a volume of the node.
	Restore(ctx context.Context, node, volume string, take func(Contents) error) error
	// Tell tells the server how it went.
	Tell(ctx context.Context, node, volume string, report Report) error
}

// Contents are what a volume had at one time.
type Contents struct {
	// About is what the node said of the volume.
	About json.RawMessage `json:"about"`
	Time  time.Time       `json:"time"`
	// Size is that of the archive, in bytes.
	Size    int64     `json:"size"`
	Archive io.Reader `json:"-"`
}

// Report is what a node tells.
type Report struct {
	// Fault says why the contents cannot be had. It is empty if the volume is there again.
	Fault string `json:"fault,omitempty"`
}

// Limits of what one side accepts from the other, in bytes.
const (
	maxHead  = 64 << 10
	maxFault = 4 << 10
)

// patience is how long the other side may take for the next part of an archive.
const patience = 5 * time.Minute

// Client is a Server in another process. It is the node's own client.
func Client(config *rest.Config) Server { return client{config} }

type client struct{ config *rest.Config }

func (c client) do(ctx context.Context, method, volume string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.config.Host+Path+url.PathEscape(volume), body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	response, err := (&http.Client{
		Transport: c.config.Transport,
		// A kedge server never redirects.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}).Do(request)
	if err != nil {
		return nil, fmt.Errorf("call a server: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return nil, ErrNotAsked
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxFault)) // only the message may be cut off
	return nil, fmt.Errorf("a server answers %s: %s", response.Status, strings.TrimSpace(string(text)))
}

// Save implements Server.
func (c client) Save(ctx context.Context, _, volume string, about json.RawMessage, content io.Reader) error {
	response, err := c.do(ctx, http.MethodPut, volume, io.MultiReader(strings.NewReader(string(about)+"\n"), content))
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Restore implements Server.
func (c client) Restore(ctx context.Context, _, volume string, take func(Contents) error) error {
	response, err := c.do(ctx, http.MethodGet, volume, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	head, archive, err := readHead(response.Body)
	if err != nil {
		return err
	}
	var contents Contents
	if err := json.Unmarshal(head, &contents); err != nil {
		return fmt.Errorf("read what the server says of the volume: %w", err)
	}
	contents.Archive = archive
	return take(contents)
}

// Tell implements Server.
func (c client) Tell(ctx context.Context, _, volume string, report Report) error {
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	response, err := c.do(ctx, http.MethodPost, volume, strings.NewReader(string(text)))
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// readHead reads the first line, and returns what follows it.
func readHead(r io.Reader) (head []byte, rest io.Reader, err error) {
	buffered := bufio.NewReaderSize(r, maxHead)
	head, err = buffered.ReadSlice('\n')
	if err != nil {
		return nil, nil, fmt.Errorf("read the description of a volume: %w", err)
	}
	return append([]byte(nil), head...), buffered, nil
}

// Handler serves the requests of Client. nodeOf returns the node that calls.
func Handler(server Server, nodeOf func(*http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		volume := strings.TrimPrefix(r.URL.Path, Path)
		if volume == "" || strings.Contains(volume, "/") {
			http.NotFound(w, r)
			return
		}
		began, err := false, error(nil)
		switch node := nodeOf(r); r.Method {
		case http.MethodPut:
			err = save(server, w, r, node, volume)
		case http.MethodGet:
			err = server.Restore(r.Context(), node, volume, func(contents Contents) error {
				began = true
				return send(w, contents)
			})
		case http.MethodPost:
			var report Report
			if err = json.NewDecoder(io.LimitReader(r.Body, maxHead)).Decode(&report); err == nil {
				report.Fault = report.Fault[:min(len(report.Fault), maxFault)]
				err = server.Tell(r.Context(), node, volume, report)
			}
		default:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		switch {
		case err == nil:
		case began:
			panic(http.ErrAbortHandler) // the node sees that the contents are cut off
		case errors.Is(err, ErrNotAsked):
			http.NotFound(w, r)
		default:
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
}

// save reads a request with contents.
func save(server Server, w http.ResponseWriter, r *http.Request, node, volume string) error {
	head, archive, err := readHead(&patientReader{r.Body, http.NewResponseController(w)})
	if err != nil {
		return err
	}
	if !json.Valid(head) {
		return errors.New("the description of the volume is not JSON")
	}
	return server.Save(r.Context(), node, volume, json.RawMessage(strings.TrimSpace(string(head))), archive)
}

// patientReader fails if the next part does not come.
type patientReader struct {
	io.Reader
	control *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	// Without deadlines, as in some tests, it waits.
	_ = p.control.SetReadDeadline(time.Now().Add(patience))
	return p.Reader.Read(b)
}

// send writes contents to a node.
func send(w http.ResponseWriter, contents Contents) error {
	head, err := json.Marshal(contents)
	if err != nil {
		return fmt.Errorf("encode what is known of a volume: %w", err)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := w.Write(append(head, '\n')); err != nil {
		return err
	}
	_, err = io.Copy(&patientWriter{w, http.NewResponseController(w)}, contents.Archive)
	return err
}

// patientWriter fails if the next part is not taken.
type patientWriter struct {
	io.Writer
	control *http.ResponseController
}

func (p *patientWriter) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(patience))
	return p.Writer.Write(b)
}
