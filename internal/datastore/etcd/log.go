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

// repeatAfter is how long the same message is not logged again.
const repeatAfter = time.Minute

// told are the messages that somebody may have to do something about. etcd tells
// its whole life at the level info, and warns of all that is not as in a large
// cluster, and of each attempt to reach a member that is down.
var told = map[string]logrus.Level{
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp/peer_status.go peerStatus.deactivate peerStatus.activate
	"peer became inactive (message send to peer failed)": logrus.WarnLevel,
	"peer became active": logrus.InfoLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/storage/wal/wal.go WAL.sync
	"slow fdatasync": logrus.WarnLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/raft.go raftNode.processMessages
	"leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk": logrus.WarnLevel,
	// client.go has it said, with less in it.
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/txn/util.go warnOfExpensiveGenericRequest
	"apply request took too long": logrus.DebugLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp/probing_status.go monitorProbingStatus
	"prober found high clock drift": logrus.WarnLevel,
	// At every stop; Member.Run hears of it otherwise.
	//upstream:relies-on go.etcd.io/etcd/server/v3/embed/etcd.go Etcd.errHandler
	"setting up serving from embedded etcd failed.": logrus.DebugLevel,
	// At every join; Member.await tries again.
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/server.go EtcdServer.isLearnerReady
	"rejecting promote learner: learner is not ready": logrus.DebugLevel,
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/version/monitor.go Monitor.UpdateStorageVersionIfNeeded
	"failed to update storage version": logrus.DebugLevel,
}

// newLogger returns a logger that writes into log. What etcd would end the process
// for, a disk that is full above all, it hands to fatal, and ends the goroutine
// only.
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

// level returns what the level of a message is here.
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
