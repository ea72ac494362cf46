package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// echo answers with the path and the question.
func echo(w http.ResponseWriter, r *http.Request) {
	var question string
	_ = json.NewDecoder(r.Body).Decode(&question)
	Answer(w, r.URL.Path+" "+question)
}

func TestAsk(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "folder", "test.sock")
	var answer string
	if err := Ask(t.Context(), socket, "x", nil, &answer); !errors.Is(err, ErrNobody) {
		t.Errorf("no socket: got %v", err)
	}
	// Twice: the second finds the socket of the first, as after a kill -9.
	for range 2 {
		listener, err := Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- Serve(ctx, listener, http.HandlerFunc(echo)) }()
		if err := Ask(t.Context(), socket, "path", "question", &answer); err != nil || answer != "/path question" {
			t.Errorf("got %q, %v", answer, err)
		}
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket: %v, %v", info, err)
		}
		if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "stop the other kedge") {
			t.Errorf("a second one: %v", err)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := os.WriteFile(socket, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Ask(t.Context(), socket, "x", nil, &answer); !errors.Is(err, ErrNobody) {
		t.Errorf("after the stop: got %v", err)
	}
}

// A command that is being done when kedge stops ends, and its answer arrives; one
// without an answer is an error.
func TestStop(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "test.sock")
	listener, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Serve(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/nothing" {
				return
			}
			stop()
			<-r.Context().Done()
			Answer(w, "stopped")
		}))
	}()
	var answer string
	if err := Ask(t.Context(), socket, "nothing", nil, &answer); err == nil || !strings.Contains(err.Error(), "stopped before it was done") {
		t.Errorf("no answer: got %v", err)
	}
	if err := Ask(t.Context(), socket, "x", nil, &answer); err != nil || answer != "stopped" {
		t.Errorf("got %q, %v", answer, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
