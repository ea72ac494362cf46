package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prints the steps of a command that takes a while: lines for people, or one JSON object for each
// step.
type progress struct {
	out   io.Writer
	json  bool
	mutex sync.Mutex
}

// newProgress returns a progress in a format, which is text or json.
func newProgress(out io.Writer, format string) (*progress, error) {
	if format != "text" && format != "json" {
		return nil, fmt.Errorf("unknown output format %q: use text or json", format)
	}
	return &progress{out: out, json: format == "json"}, nil
}

// step prints a step that has ended.
func (p *progress) step(name string, took time.Duration) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.json {
		_ = json.NewEncoder(p.out).Encode(map[string]any{"step": name, "seconds": took.Seconds()})
		return
	}
	fmt.Fprintf(p.out, "kedge: %-16s %6.2fs\n", name, took.Seconds())
}

// note prints what the user should know.
func (p *progress) note(text string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.json {
		_ = json.NewEncoder(p.out).Encode(map[string]any{"note": text})
		return
	}
	fmt.Fprintf(p.out, "kedge: %s\n", text)
}
