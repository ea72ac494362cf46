// Package policystream brings NetworkPolicies from a server to a node: the format of the
// stream, and the client. Package supervisor is the serving side. The boot lists in
// packages agent and server give the node Stream.Keep.
package policystream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

const (
	// Path is where servers with an API server have the stream of a node: updates as JSON,
	// one in each line.
	Path = "/v1-kedge/node/policies"
	// KeepAlive is how often a server sends an update at least. One without changes says
	// only that the stream is alive.
	KeepAlive = time.Minute
	// silence is how long a node waits for an update before it connects again.
	silence = 3 * KeepAlive
	// answerPatience is how long a server may take to begin its answer.
	answerPatience = 15 * time.Second
	// maxLine is how many bytes an update may have. An address has about 15, so that is
	// enough for 1,000 sets with 2,000 pods each.
	maxLine = 32 << 20
	// steady is how long a stream must have lasted so that the next one begins without
	// much delay.
	steady = time.Minute
	// without is the wait after the answer of a server that has no such stream.
	without = time.Minute
)

// Stream calls apply with updates, the first of which is everything, until it fails or
// ctx ends.
type Stream func(ctx context.Context, apply func(netpolicy.Update) error) error

// errNoRoute is the answer of a server of an older version. A node must not take it for "no
// policies", because another server may enforce them.
var errNoRoute = errors.New("this node gets no NetworkPolicies, because a server runs an older kedge that cannot tell them. " +
	"Upgrade all servers; servers always come before agents. Until then, new pods of this node have no connections")

// Keep calls apply with the updates of a stream until ctx ends. If the stream breaks or
// apply fails, it waits a moment and begins again, with everything. It returns nil. Nobody
// may change what an update points to.
func (stream Stream) Keep(ctx context.Context, apply func(netpolicy.Update) error) error {
	log := logrus.WithField("component", "network-policy")
	told := ""
	for delay := backoff(); ; {
		began := time.Now()
		err := stream(ctx, apply)
		if ctx.Err() != nil {
			return nil
		}
		pause, text := delay(), fmt.Sprint(err)
		switch {
		case time.Since(began) > steady, errors.Is(err, context.Canceled):
			// A server has stopped, most likely. The next attempt says more.
			delay, told = backoff(), ""
			log.Debug(text)
		case text != told:
			told = text
			log.Warnf("%s. Trying again. Until then, what the node knows stays in force", text)
		}
		if errors.Is(err, errNoRoute) {
			pause = without
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// backoff returns the delays between attempts. They are spread, so that the nodes do not
// all come at once to a server that has restarted.
func backoff() wait.DelayFunc {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 10 * time.Second, Steps: 10}.DelayFunc()
}

// From returns the stream of a server. client is that of the node itself, which leads to
// a server that answers.
func From(client *rest.Config) Stream {
	return func(ctx context.Context, apply func(netpolicy.Update) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		quiet := time.AfterFunc(answerPatience, cancel)
		defer quiet.Stop()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, client.Host+Path, nil)
		if err != nil {
			return fmt.Errorf("make request: %w", err)
		}
		response, err := (&http.Client{
			Transport: client.Transport,
			// A kedge server never redirects.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}).Do(request)
		if err != nil {
			return fmt.Errorf("ask a server for the NetworkPolicies: %w", err)
		}
		defer response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
		case http.StatusNotFound:
			return errNoRoute
		default:
			return fmt.Errorf("ask a server for the NetworkPolicies: it answers %s", response.Status)
		}
		d := NewDecoder(response.Body)
		for {
			quiet.Reset(silence)
			update, err := d.Next()
			if err != nil {
				return fmt.Errorf("read the NetworkPolicies from a server: %w", err)
			}
			quiet.Stop()
			if !update.Whole && len(update.Sets)+len(update.Groups)+len(update.Pods) == 0 {
				continue // a keep-alive
			}
			if err := apply(update); err != nil {
				return fmt.Errorf("enforce the NetworkPolicies: %w", err)
			}
		}
	}
}

// Decoder reads updates. It trusts nobody: it limits what it keeps in memory, and accepts
// only what netpolicy.Update.Check does.
type Decoder struct {
	reader *bufio.Reader
	// limit is maxLine, except in tests. begun says that an update was whole.
	limit int
	begun bool
}

// NewDecoder makes a decoder.
func NewDecoder(r io.Reader) *Decoder { return &Decoder{reader: bufio.NewReader(r), limit: maxLine} }

// Next returns the next update. Its error is io.EOF after the last one.
func (d *Decoder) Next() (update netpolicy.Update, err error) {
	line, err := d.line()
	if err != nil {
		return update, err
	}
	if err := json.Unmarshal(line, &update); err != nil {
		return netpolicy.Update{}, fmt.Errorf("decode update: %w", err)
	}
	if err := update.Check(); err != nil {
		return netpolicy.Update{}, fmt.Errorf("refuse update: %w", err)
	}
	if !d.begun && !update.Whole {
		return netpolicy.Update{}, errors.New("refuse update: the first one is not whole")
	}
	d.begun = true
	return update, nil
}

// line returns a line. It keeps no buffer of the size of the longest line.
func (d *Decoder) line() ([]byte, error) {
	var whole []byte
	for {
		part, err := d.reader.ReadSlice('\n')
		if len(whole)+len(part) > d.limit {
			return nil, fmt.Errorf("an update has more than %d bytes", d.limit)
		}
		whole = append(whole, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && len(whole) > 0 && errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		default:
			return bytes.TrimSuffix(whole, []byte("\n")), nil
		}
	}
}

// Encode writes an update.
func Encode(w io.Writer, update netpolicy.Update) error {
	// The encoder ends it with a line feed, and puts none elsewhere.
	return json.NewEncoder(w).Encode(update)
}
