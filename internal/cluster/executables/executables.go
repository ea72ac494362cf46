// Package executables gets executables of kedge from servers, and finds out which version an
// executable is. The stores of servers and the upgraders of nodes use it.
package executables

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

const (
	// answerPatience is how long a server may take to begin its answer, and Silence how long
	// it may send nothing after that.
	answerPatience = 15 * time.Second
	Silence        = time.Minute
	// versionPatience is how long an executable may take to tell its version. A small board
	// reads it from an SD card.
	versionPatience = time.Minute
)

// Source gets executables from servers.
type Source struct {
	// Servers returns the addresses of servers, HOST:PORT.
	Servers func() []string
	// TLS trusts the cluster, and shows the certificate of a node of it.
	TLS *tls.Config

	// silence is shorter in tests.
	silence time.Duration
}

// Get calls take with the executable that has a digest, from one server after the other, until
// take returns nil. The error is fs.ErrNotExist if no server has the executable.
func (s *Source) Get(ctx context.Context, digest string, take func(io.Reader) error) error {
	faults := []error{fs.ErrNotExist}
	for _, server := range s.Servers() {
		err := s.get(ctx, server, digest, take)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, fmt.Errorf("get the executable from the server at %s: %w", server, err))
		}
	}
	if len(faults) > 1 {
		return errors.Join(faults[1:]...)
	}
	return fmt.Errorf("no server has the executable: %w", fs.ErrNotExist)
}

func (s *Source) get(ctx context.Context, server, digest string, take func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+pki.APIName+upgrades.ExecutablePath+digest, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	dialer := net.Dialer{Timeout: answerPatience}
	client := http.Client{
		Transport: &http.Transport{
			TLSClientConfig: s.TLS.Clone(), DisableKeepAlives: true, DisableCompression: true,
			TLSHandshakeTimeout: answerPatience, ResponseHeaderTimeout: answerPatience,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, server)
			},
		},
		// A kedge server never redirects.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fs.ErrNotExist
	default:
		return fmt.Errorf("it answers %s", response.Status)
	}
	body, stop := Noisy(response.Body, cmp.Or(s.silence, Silence), cancel)
	defer stop()
	if err := take(body); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}

// Noisy returns a reader of from. It calls cancel when nothing could be read for patience,
// until the end of from. The caller calls stop after the last read.
func Noisy(from io.Reader, patience time.Duration, cancel context.CancelCauseFunc) (reader io.Reader, stop func()) {
	n := &noisy{Reader: from, patience: patience}
	n.quiet = time.AfterFunc(patience, func() {
		n.silent.Store(true)
		cancel(n.fault())
	})
	return n, func() { n.quiet.Stop() }
}

// noisy lets a timer begin again whenever something was read.
type noisy struct {
	io.Reader
	patience time.Duration
	quiet    *time.Timer
	// silent is true when patience is over. The server learns that its client goes, and may still end its
	// answer as if that were all. So an end that comes afterwards is an error.
	silent atomic.Bool
}

func (n *noisy) fault() error { return fmt.Errorf("it has sent nothing for %s", n.patience) }

func (n *noisy) Read(buffer []byte) (int, error) {
	count, err := n.Reader.Read(buffer)
	if err == io.EOF && n.silent.Load() {
		return count, n.fault()
	}
	if err != nil {
		n.quiet.Stop() // what comes after the end may take longer, such as syncing the disk
	} else {
		n.quiet.Reset(n.patience)
	}
	return count, err
}

// ErrTooLarge says that an executable has more bytes than it may have.
var ErrTooLarge = errors.New("it is too large")

// Write writes an executable of up to limit bytes to a file, syncs it to the disk, and returns
// its SHA-256 digest. It fails with ErrTooLarge.
func Write(file *os.File, from io.Reader, limit int64) (digest string, err error) {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, sum), io.LimitReader(from, limit+1))
	switch {
	case err != nil:
		return "", err
	case n > limit:
		return "", fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
	}
	if err := file.Sync(); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Version runs an executable to ask for its version. It fails if that is no kedge, or does not
// run on this host.
func Version(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	var out, fault bytes.Buffer
	for {
		command := exec.CommandContext(ctx, path, "--version")
		command.Env = []string{}
		command.Stdout, command.Stderr = &out, &fault
		// Something that it has started may hold its output open.
		command.WaitDelay = time.Second
		err := command.Run()
		if errors.Is(err, syscall.ETXTBSY) && ctx.Err() == nil {
			// Another goroutine has started a program while the file was open for writing
			// (https://go.dev/issue/22315).
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			text, _, _ := strings.Cut(strings.TrimSpace(fault.String()), "\n")
			return "", fmt.Errorf("it does not run here: %w %s", err, text)
		}
		break
	}
	version, is := strings.CutPrefix(strings.TrimSpace(out.String()), "kedge ")
	if !is || !upgrades.IsVersion(version) {
		return "", errors.New("it is not a kedge: it does not tell the version of one")
	}
	return version, nil
}
