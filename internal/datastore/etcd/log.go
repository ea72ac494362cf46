package etcd

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// repeatAfter is the least time between two log lines with the same message.
const repeatAfter = time.Minute

// told lists the messages that a user may have to act on, with their levels here.
// etcd logs all that it does at level info. It warns of everything that is
// unusual in a large cluster, and of each attempt to reach a member that is down.
var told = map[string]logrus.Level{
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp/peer_status.go peerStatus.deactivate peerStatus.activate
	"peer became inactive (message send to peer failed)": logrus.WarnLevel,
	"peer became active": logrus.InfoLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/storage/wal/wal.go WAL.sync
	"slow fdatasync": logrus.WarnLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/raft.go raftNode.processMessages
	"leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk": logrus.WarnLevel,
	// client.go logs slow requests too, with less detail.
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/txn/util.go warnOfExpensiveGenericRequest
	"apply request took too long": logrus.DebugLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp/probing_status.go monitorProbingStatus
	"prober found high clock drift": logrus.WarnLevel,
	// etcd logs this at every stop. If it happens at another time, Member.Run
	// gets the error.
	//upstream:relies-on go.etcd.io/etcd/server/v3/embed/etcd.go Etcd.errHandler
	"setting up serving from embedded etcd failed.": logrus.DebugLevel,
	// etcd logs this at every join. Member.await tries again.
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/server.go EtcdServer.isLearnerReady
	"rejecting promote learner: learner is not ready": logrus.DebugLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/version/monitor.go Monitor.UpdateStorageVersionIfNeeded
	"failed to update storage version": logrus.DebugLevel,
}

// newLogger returns a logger that writes into log. For some errors, above all a
// full disk, etcd would end the process. The logger hands such an error to fatal
// and ends only the goroutine.
func newLogger(log *logrus.Entry, fatal func(error)) *zap.Logger {
	return zap.New(&core{log: log, seen: &seen{at: map[string]time.Time{}}}, zap.WithFatalHook(fatalHook(fatal)))
}

// fatalHook is a zapcore.CheckWriteHook.
type fatalHook func(error)

// OnWrite implements zapcore.CheckWriteHook.
func (f fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	why := errors.New(entry.Message)
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			why = fmt.Errorf("%s: %w", entry.Message, datadir.Explain(err))
		}
	}
	f(why)
	runtime.Goexit()
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

// level returns the level at which kedge logs a message of etcd.
func level(entry zapcore.Entry) logrus.Level {
	if known, ok := told[entry.Message]; ok {
		return known
	}
	if entry.Level >= zapcore.ErrorLevel {
		return logrus.ErrorLevel
	}
	return logrus.DebugLevel
}

// Enabled implements zapcore.LevelEnabler.
func (c *core) Enabled(l zapcore.Level) bool { return l >= zapcore.InfoLevel }

// With implements zapcore.Core.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.log, slices.Concat(c.fields, fields), c.seen}
}

// Check implements zapcore.Core.
func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) && c.log.Logger.IsLevelEnabled(level(entry)) {
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
	to := level(entry)
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
