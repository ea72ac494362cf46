package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/base/published"
	"github.com/kedge-dev/kedge/internal/inspect/console/screen"
)

// mostShells is how many programs run at the same time.
const mostShells = 8

// leaving is how long a program goes on after its page was left. A page that is opened again within this time has it still.
const leaving = 10 * time.Second

// shells are the programs that run in terminals of pages.
type shells struct {
	exec    Exec
	leaving time.Duration

	mu      sync.Mutex
	byID    map[string]*shell
	running sync.WaitGroup
	// ctx ends all of them. It is nil before the page is served.
	ctx context.Context
}

// shell is a program in a container, with the screen of its terminal.
type shell struct {
	ID, Namespace, Pod, Container string
	Command                       []string

	// ctx ends when nobody wants the program any more, and end ends it. The link to the program ends with link, a little
	// later.
	ctx, link context.Context
	end, cut  context.CancelFunc
	done      chan struct{}
	// verdict says how the program has ended. It is set when done is closed.
	verdict string

	// input is what the program reads next, and rest what is left of the last of it.
	input chan []byte
	rest  []byte
	sizes chan remotecommand.TerminalSize
	// changed tells that the screen has changed.
	changed published.Value[struct{}]

	mu     sync.Mutex
	screen *screen.Screen

	// watching is how many pages show the screen, and left runs when there was none for a time. The lock of shells guards
	// them.
	watching int
	left     *time.Timer
}

// errTooMany is an answer to a user who opens more terminals than there may be.
var errTooMany = fmt.Errorf("%d terminals are open, and there cannot be more: end one of them", mostShells)

// start starts a program in a container.
func (all *shells) start(namespace, pod, container string, command []string) (*shell, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	count := 0
	for _, s := range all.byID {
		select {
		case <-s.done:
		default:
			count++
		}
	}
	if count >= mostShells {
		return nil, errTooMany
	}
	s := &shell{
		ID: rand.Text(), Namespace: namespace, Pod: pod, Container: container, Command: command, done: make(chan struct{}),
		input: make(chan []byte, 16), sizes: make(chan remotecommand.TerminalSize, 1), screen: screen.New(24, 80),
	}
	s.ctx, s.end = context.WithCancel(all.ctx)
	s.link, s.cut = context.WithCancel(context.WithoutCancel(s.ctx))
	s.left = time.AfterFunc(all.leaving, func() { all.drop(s) })
	s.resize(24, 80)
	all.byID[s.ID] = s
	all.running.Go(func() {
		hungUp := context.AfterFunc(s.ctx, s.hangUp)
		s.verdict = s.run(all.exec)
		hungUp()
		s.cut()
		s.end()
		close(s.done)
	})
	return s, nil
}

// find returns the program of an ID, or nil.
func (all *shells) find(id string) *shell {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.byID[id]
}

// watch notes that a page shows the program of an ID, until leave is called. The shell is nil if there is none.
func (all *shells) watch(id string) (s *shell, leave func()) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if s = all.byID[id]; s == nil {
		return nil, nil
	}
	s.watching++
	s.left.Stop()
	return s, func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if s.watching--; s.watching == 0 {
			s.left.Reset(all.leaving)
		}
	}
}

// drop ends a program that no page shows.
func (all *shells) drop(s *shell) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if s.watching == 0 {
		s.end()
		delete(all.byID, s.ID)
	}
}

// wait returns when the links to all programs are cut. The caller must have ended the context.
func (all *shells) wait() {
	all.mu.Lock()
	for _, s := range all.byID {
		s.left.Stop()
	}
	all.mu.Unlock()
	all.running.Wait()
}

// run runs the program, and says how it has ended.
func (s *shell) run(exec Exec) (verdict string) {
	err := exec(s.link, s.Namespace, s.Pod, &corev1.PodExecOptions{Container: s.Container, Command: s.Command, Stdin: true, Stdout: true, TTY: true},
		remotecommand.StreamOptions{Stdin: inputOf{s}, Stdout: s, Tty: true, TerminalSizeQueue: s})
	var status utilexec.CodeExitError
	switch {
	case s.ctx.Err() != nil:
		return "The terminal was ended."
	case err == nil:
		return "The program has ended with exit status 0."
	case errors.As(err, &status):
		return fmt.Sprintf("The program has ended with exit status %d.", status.Code)
	}
	text, refused := strings.CutPrefix(err.Error(), refusal)
	text = foreigntext.Cut(strings.Join(strings.Fields(printable(text)), " "), longestReason)
	if refused && strings.Contains(text, " is forbidden: ") {
		return "You may not run programs in this pod: " + text
	}
	return "The program does not run: " + text
}

// refusal is the beginning of an error if the API runs nothing. The rest is the API's message.
//
//upstream:relies-on k8s.io/streaming/pkg/httpstream/spdy/roundtripper.go SpdyRoundTripper.NewConnection
const refusal = "unable to upgrade connection: "

// longestReason is how much of an error a sentence has. Programs in the container may have written parts of it.
const longestReason = 500

// farewell is what a program is sent when nobody wants it any more: interrupt, quit, and twice the end of the input. The end
// of the link alone ends no program that has a terminal: containerd keeps the terminal open (k3s-io/k3s#13749).
var farewell = []string{"\x03", "\x1c", "\x04", "\x04"}

// farewellPace is the time between two of them, in which a shell gets ready for the next.
const farewellPace = 150 * time.Millisecond

// hangUp asks the program to end, and then cuts the link.
func (s *shell) hangUp() {
	defer s.cut()
	for _, key := range farewell {
		select {
		case s.input <- []byte(key):
		default: // a program that does not read
		}
		select {
		case <-s.link.Done():
			return
		case <-time.After(farewellPace):
		}
	}
}

// piece is how much of what a program writes is taken at once, so that a page does not wait for long.
const piece = 4 << 10

// Write takes what the program writes.
func (s *shell) Write(p []byte) (int, error) {
	for part := range slices.Chunk(p, piece) {
		s.mu.Lock()
		_, _ = s.screen.Write(part) // it never fails
		answers := s.screen.Answers()
		s.mu.Unlock()
		if len(answers) > 0 {
			select {
			case s.input <- answers:
			default: // a program that asks, and does not read
			}
		}
	}
	s.changed.Set(struct{}{})
	return len(p), nil
}

// inputOf is what a program reads.
type inputOf struct{ *shell }

// Read returns what the user types, until the program ends.
func (s inputOf) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		select {
		case s.rest = <-s.input:
		case <-s.link.Done():
			return 0, io.EOF
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Next returns the size of the terminal when it has changed, and nil at the end.
func (s *shell) Next() *remotecommand.TerminalSize {
	select {
	case size := <-s.sizes:
		return &size
	case <-s.link.Done():
		return nil
	}
}

// resize gives the screen the size nearest to what the page has room for.
func (s *shell) resize(rows, columns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.screen.Resize(rows, columns)
	rows, columns = s.screen.Size()
	select {
	case <-s.sizes: // the newest one counts
	default:
	}
	s.sizes <- remotecommand.TerminalSize{Width: uint16(columns), Height: uint16(rows)}
	s.changed.Set(struct{}{})
}

// enter gives the program what the user types. It waits while the program does not read, and returns false if the program
// has ended.
func (s *shell) enter(ctx context.Context, keys []screen.Key) bool {
	var typed []byte
	s.mu.Lock()
	for _, key := range keys {
		typed = append(typed, s.screen.Encode(key)...)
	}
	s.mu.Unlock()
	if len(typed) == 0 || s.ctx.Err() != nil {
		return s.ctx.Err() == nil
	}
	select {
	case <-s.ctx.Done():
		return false
	case s.input <- typed:
		return true
	case <-ctx.Done():
		return false
	}
}
