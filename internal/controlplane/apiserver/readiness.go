package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// readyPoll is how often awaitReady asks the server whether it is ready.
	readyPoll = 10 * time.Millisecond
	// slowStart is how often awaitReady logs what the server still lacks.
	slowStart = 20 * time.Second
)

// awaitReady returns whether the server has become ready, or why it ended. If ctx
// ends first, it waits for up to drainTime more: upstream's start hooks end the
// process if they fail, even if they fail because they are cancelled
// (apiserver/pkg/server/hooks.go, runPostStartHook).
//
//upstream:relies-on k8s.io/apiserver/pkg/server/hooks.go runPostStartHook
func (s *Server) awaitReady(ctx context.Context, ended <-chan error) (bool, error) {
	client := &http.Client{Transport: s.loopback()}
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	slow := time.NewTicker(slowStart)
	defer slow.Stop()
	cancelled := ctx.Done()
	var giveUp <-chan time.Time
	var missing string
	for {
		select {
		case err := <-ended:
			return false, endedEarly(err)
		case <-giveUp:
			return false, nil
		case <-cancelled:
			cancelled, giveUp = nil, time.After(drainTime)
		case <-slow.C:
			s.log.Warnf("Still not ready:\n%s", missing)
		case <-poll.C:
			var ok bool
			if ok, missing = readyz(client); !ok {
				continue
			}
			if served, release := s.acquire(); served != nil {
				release()
				if served.authorizes() {
					return ctx.Err() == nil, nil
				}
				missing = "the authorizer has not seen all bootstrap roles"
			}
		}
	}
}

// readyz asks the server whether it is ready, and returns the failing checks.
func readyz(client *http.Client) (bool, string) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kubernetes.default.svc/readyz", nil)
	if err != nil {
		return false, err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return false, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return false, err.Error()
	}
	return response.StatusCode == http.StatusOK, failingChecks(string(body))
}

func endedEarly(err error) error {
	if err == nil {
		return errors.New("API server ended without being asked to")
	}
	return fmt.Errorf("run API server: %w", err)
}

// failingChecks returns the lines of failing checks in an answer of /readyz, such as
//
//	[-]etcd failed: reason withheld
func failingChecks(body string) string {
	var failing []string
	for line := range strings.Lines(body) {
		//upstream:relies-on k8s.io/apiserver/pkg/server/healthz/healthz.go handleRootHealth
		if strings.HasPrefix(line, "[-]") {
			failing = append(failing, strings.TrimRight(line, "\n"))
		}
	}
	if len(failing) == 0 {
		return strings.TrimSpace(body)
	}
	return strings.Join(failing, "\n")
}
