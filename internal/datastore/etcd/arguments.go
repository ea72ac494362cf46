package etcd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
)

// experimental begins the names that some arguments had up to etcd v3.6.
const experimental = "experimental-"

// arguments returns the flags of upstream's etcd that users may set, bound to c. The others
// are kedge's: names, addresses, certificates, files, and what would lose data. The names
// and the meanings are those of embed.Config.AddFlags, which cannot be used itself, because
// it overwrites settings with defaults.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/embed/config.go Config.AddFlags
func arguments(c *embed.Config) *flag.FlagSet {
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.UintVar(&c.TickMs, "heartbeat-interval", c.TickMs, "")
	fs.UintVar(&c.ElectionMs, "election-timeout", c.ElectionMs, "")
	fs.Uint64Var(&c.SnapshotCount, "snapshot-count", c.SnapshotCount, "")
	fs.Uint64Var(&c.SnapshotCatchUpEntries, "snapshot-catchup-entries", c.SnapshotCatchUpEntries, "")
	fs.UintVar(&c.MaxSnapFiles, "max-snapshots", c.MaxSnapFiles, "")
	fs.UintVar(&c.MaxWalFiles, "max-wals", c.MaxWalFiles, "")
	fs.Int64Var(&c.QuotaBackendBytes, "quota-backend-bytes", c.QuotaBackendBytes, "")
	fs.StringVar(&c.BackendFreelistType, "backend-bbolt-freelist-type", c.BackendFreelistType, "")
	fs.DurationVar(&c.BackendBatchInterval, "backend-batch-interval", c.BackendBatchInterval, "")
	fs.IntVar(&c.BackendBatchLimit, "backend-batch-limit", c.BackendBatchLimit, "")
	fs.UintVar(&c.MaxTxnOps, "max-txn-ops", c.MaxTxnOps, "")
	fs.UintVar(&c.MaxRequestBytes, "max-request-bytes", c.MaxRequestBytes, "")
	fs.DurationVar(&c.GRPCKeepAliveMinTime, "grpc-keepalive-min-time", c.GRPCKeepAliveMinTime, "")
	fs.DurationVar(&c.GRPCKeepAliveInterval, "grpc-keepalive-interval", c.GRPCKeepAliveInterval, "")
	fs.DurationVar(&c.GRPCKeepAliveTimeout, "grpc-keepalive-timeout", c.GRPCKeepAliveTimeout, "")
	fs.DurationVar(&c.CorruptCheckTime, "corrupt-check-time", c.CorruptCheckTime, "")
	fs.DurationVar(&c.CompactHashCheckTime, "compact-hash-check-time", c.CompactHashCheckTime, "")
	fs.IntVar(&c.CompactionBatchLimit, "compaction-batch-limit", c.CompactionBatchLimit, "")
	fs.DurationVar(&c.CompactionSleepInterval, "compaction-sleep-interval", c.CompactionSleepInterval, "")
	fs.DurationVar(&c.WarningApplyDuration, "warning-apply-duration", c.WarningApplyDuration, "")
	fs.DurationVar(&c.WarningUnaryRequestDuration, "warning-unary-request-duration", c.WarningUnaryRequestDuration, "")
	fs.UintVar(&c.BootstrapDefragThresholdMegabytes, "bootstrap-defrag-threshold-megabytes", c.BootstrapDefragThresholdMegabytes, "")
	fs.BoolVar(&c.MemoryMlock, "memory-mlock", c.MemoryMlock, "")
	fs.StringVar(&c.Metrics, "metrics", c.Metrics, "")
	return fs
}

// CheckArguments returns all faults in the user's arguments of etcd, each name=value.
func CheckArguments(args []string) error { return apply(embed.NewConfig(), args) }

// apply sets the user's arguments in c, and returns all faults in them.
func apply(c *embed.Config, args []string) error {
	fs := arguments(c)
	var faults []error
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		name = strings.TrimPrefix(strings.ReplaceAll(name, "_", "-"), experimental)
		if fs.Lookup(name) == nil {
			faults = append(faults, fmt.Errorf("etcd-arg %s: kedge sets this itself, or etcd has no such argument: remove it", arg))
			continue
		}
		if err := fs.Set(name, value); err != nil {
			faults = append(faults, fmt.Errorf("etcd-arg %s: %w", arg, err))
		}
	}
	if len(faults) == 0 && 5*c.TickMs > c.ElectionMs {
		faults = append(faults, fmt.Errorf("etcd-arg: election-timeout %d ms is less than five times heartbeat-interval %d ms: set both", c.ElectionMs, c.TickMs))
	}
	return errors.Join(faults...)
}

// overhead is more than what etcd adds to a transaction before it measures it, in bytes: an
// identity and the length of the request.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/v3_server.go EtcdServer.processInternalRaftRequestOnce
const overhead = 1 << 10

// limit returns the size in bytes of the largest write that a member with the user's
// arguments accepts: that of all datastores, unless the user has set max-request-bytes.
func limit(args []string) (int, error) {
	c := embed.NewConfig()
	c.MaxRequestBytes = sizes.Limit
	err := apply(c, args)
	return int(c.MaxRequestBytes), err
}
