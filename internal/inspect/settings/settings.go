// Package settings manages the configuration of a running kedge. It shows the
// configuration, reads it again when it is told to, and changes the settings that can
// change without a restart, which are those of logging. The cli package runs it beside a
// server or an agent, and calls it for `kedge config` and `kedge log-level`.
package settings

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// needsRestart follows the key of a setting that only a restart changes.
const needsRestart = " changed: needs a restart of kedge"

// Load reads the configuration as at the start, with the same flags and environment.
type Load func() (*config.Config, config.Sources, error)

// Log is the logging of this process.
type Log interface {
	Levels() config.Levels
	SetLevels(config.Levels)
}

// Settings is the configuration of this process.
type Settings struct {
	role         config.Role
	load         Load
	log          Log
	setVerbosity func(int) error

	mu      sync.Mutex
	current config.Config
	sources config.Sources
}

// New makes the settings of a process that was started with cfg. setVerbosity sets the
// verbosity of Kubernetes's own code.
func New(role config.Role, load Load, cfg *config.Config, sources config.Sources, log Log, setVerbosity func(int) error) *Settings {
	return &Settings{role: role, load: load, log: log, setVerbosity: setVerbosity, current: *cfg, sources: sources}
}

// Reload reads the configuration again. It returns what changed, and what only a restart
// changes. If the configuration has a fault, nothing changes.
func (s *Settings) Reload() (changes []string, err error) {
	cfg, sources, err := s.load()
	if err != nil {
		return nil, fmt.Errorf("the configuration stays as it was: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, then := s.current.Fields(), cfg.Fields()
	reloaded := false
	for i, f := range now {
		switch {
		case f.Role != config.AnyRole && f.Role != s.role || f.Same(then[i]):
		case s.role == config.AgentRole && f.Key == "token":
			// A running agent has joined and needs no token.
		case !f.Reloads:
			changes = append(changes, f.Key+needsRestart)
		default:
			reloaded = true
			changes = append(changes, fmt.Sprintf("%s is now %v", f.Key, then[i].Shown()))
			s.sources[f.Key] = sources[f.Key]
		}
	}
	if reloaded {
		// These are all the settings that can be reloaded.
		s.current.Log.Debug, s.current.Log.Verbosity, s.current.Log.Level = cfg.Log.Debug, cfg.Log.Verbosity, cfg.Log.Level
	}
	// This also ends the levels that `kedge log-level` has set.
	s.log.SetLevels(cfg.Log.Levels())
	return changes, s.setVerbosity(cfg.Log.Verbosity)
}

// Run reloads at each signal until ctx is cancelled.
func (s *Settings) Run(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			s.tell(s.Reload())
		}
	}
}

// tell logs what a reload did.
func (s *Settings) tell(changes []string, err error) {
	log := logrus.WithField("component", "settings")
	for _, change := range changes {
		if strings.HasSuffix(change, needsRestart) {
			log.Warn(change)
		} else {
			log.Info(change)
		}
	}
	switch {
	case err != nil:
		log.Error(err)
	case len(changes) == 0:
		log.Info("nothing in the configuration changed")
	}
}
