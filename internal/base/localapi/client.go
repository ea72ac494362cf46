package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/base/version"
)

const (
	// maxAnswer is how many bytes of an answer are read at most. Profiles are the longest
	// answers.
	maxAnswer = 32 << 20
	// patience is how long kedge may take to confirm that it has the question, because
	// the host may be busy. The answer itself may take any time.
	patience = 30 * time.Second
)

// ErrNotRunning says that no kedge runs on this host.
var ErrNotRunning = errors.New("kedge is not running on this host: start its service (`systemctl start kedge`, or `rc-service kedge start`), or run `kedge server` or `kedge agent`")

// ErrNotReady says that the kedge on this host cannot answer this question, or not yet.
// The rest of the message says why, and what to do.
var ErrNotReady = errors.New("the kedge on this host cannot do this now")

var (
	errOnlyRoot = errors.New("only root may ask the kedge on this host: run this command with sudo")
	errSilent   = errors.New("kedge does not answer")
)

// oldSocket is the socket of an older kedge, which had no single socket for all commands.
const oldSocket = "status.sock"

// Client asks the kedge that runs on this host.
type Client struct {
	socket string
	dial   func(context.Context) (net.Conn, error)
}

// NewClient returns a client of the Server at a socket.
func NewClient(socket string) *Client {
	return &Client{socket, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }}
}

// Ask sends a question to an endpoint and returns the answer. question is nil if the
// endpoint needs none. If kedge returns an error, the answer has what was done in spite of
// it. If nothing answers, the error is ErrNotRunning or ErrNotReady.
func Ask[T any](ctx context.Context, c *Client, e Endpoint, question any) (answer T, err error) {
	err = c.ask(ctx, e, question, &answer)
	return answer, err
}

func (c *Client) ask(ctx context.Context, e Endpoint, question, answer any) error {
	var body []byte
	if question != nil {
		var err error
		if body, err = json.Marshal(question); err != nil {
			return fmt.Errorf("write question: %w", err)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience, func() { cancel(errSilent) })
	defer silent.Stop()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { silent.Stop() }})
	request, err := http.NewRequestWithContext(ctx, table[e].method, "http://kedge"+table[e].path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
	}}
	response, err := client.Do(request)
	if err != nil {
		return c.explain(ctx, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.explain(ctx, err)
	case len(text) > maxAnswer:
		return fmt.Errorf("kedge's answer to %s has more than %d bytes", e, maxAnswer)
	case response.StatusCode == http.StatusOK:
		return read(text, answer)
	}
	told := fault{Answer: answer}
	if err := read(text, &told); err != nil {
		return err
	}
	switch response.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return fmt.Errorf("the kedge that runs on this host has version %s and does not know %s, which this command of version %s asks for: "+
			"restart kedge with the executable of this command (`systemctl restart kedge` starts the installed one)",
			response.Header.Get(versionHeader), e, version.Version)
	case http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", ErrNotReady, told.Message)
	}
	return errors.New(told.Message)
}

// explain returns an error that says why there is no answer, and what to do.
func (c *Client) explain(ctx context.Context, err error) error {
	switch {
	// EAGAIN: no process accepts connections.
	case errors.Is(context.Cause(ctx), errSilent) || errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("kedge runs on this host, but does not answer at %s: read its log, and restart it if this lasts (`systemctl restart kedge`)", c.socket)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		old, err := net.Dial("unix", filepath.Join(filepath.Dir(c.socket), oldSocket))
		if err != nil {
			return ErrNotRunning
		}
		old.Close()
		return fmt.Errorf("an older kedge runs on this host, and this command of version %s cannot ask it: restart kedge with the new executable (`systemctl restart kedge`)", version.Version)
	case errors.Is(err, fs.ErrPermission):
		return errOnlyRoot
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE):
		return errors.New("kedge stopped before it had answered: read its log, and run this command again when kedge runs")
	}
	return fmt.Errorf("ask the kedge on this host: %w", err)
}

// read decodes an answer.
func read(text []byte, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the answer of kedge: %w", err)
	}
	return nil
}
