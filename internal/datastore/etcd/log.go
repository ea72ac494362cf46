package etcd

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// repeatAfter is how long the same message is not logged again.
const repeatAfter = time.Minute

// newLogger returns a logger that writes into log. etcd tells its whole life at
// the level info, which is for debugging here, and warns of the same many times.
func newLogger(log *logrus.Entry) *zap.Logger {
	return zap.New(&core{log: log, seen: &seen{at: map[string]time.Time{}}})
}

// core is a zapcore.Core.
type core struct {
	log    *logrus.Entry
	fields []zapcore.Field
	seen   *seen
}

// seen are the messages that were logged, and when.
type seen struct {
	mu sync.Mutex
	at map[string]time.Time
}

// level returns what etcd's level is here.
func level(l zapcore.Level) logrus.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return logrus.ErrorLevel
	case l == zapcore.WarnLevel:
		return logrus.WarnLevel
	}
	return logrus.DebugLevel
}

// Enabled implements zapcore.LevelEnabler.
func (c *core) Enabled(l zapcore.Level) bool { return c.log.Logger.IsLevelEnabled(level(l)) }

// With implements zapcore.Core.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.log, slices.Concat(c.fields, fields), c.seen}
}

// Check implements zapcore.Core.
func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		f.AddTo(encoder)
	}
	to := level(entry.Level)
	text := "etcd: " + strings.TrimSpace(entry.Message)
	if to > logrus.ErrorLevel && !c.log.Logger.IsLevelEnabled(logrus.DebugLevel) && !c.seen.first(text) {
		return nil
	}
	data := logrus.Fields{}
	maps.Copy(data, encoder.Fields)
	c.log.WithFields(data).Log(to, text)
	return nil
}

// Sync implements zapcore.Core.
func (*core) Sync() error { return nil }

// first tells whether a message was not logged in the last minute.
func (s *seen) first(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at[text]) < repeatAfter {
		return false
	}
	s.at[text] = time.Now()
	return true
}
