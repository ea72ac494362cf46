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

// awaitReady returns whether the server has become ready, or why it ended. If
// ctx ends meanwhile it waits on for a while: upstream's start hooks end the
// process if they fail, also if they were cancelled (apiserver/pkg/server/hooks.go,
// runPostStartHook).
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

// readyz asks the server for its checks, and returns the failing ones.
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

// failingChecks picks the failing ones of the lines that /readyz answers with,
// such as
//
//	[-]etcd failed: reason withheld
func failingChecks(body string) string {
	var failing []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			failing = append(failing, strings.TrimRight(line, "\n"))
		}
	}
	if len(failing) == 0 {
		return strings.TrimSpace(body)
	}
	return strings.Join(failing, "\n")
}
