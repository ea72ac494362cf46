package host

import "testing"

func TestMemory(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"no cgroups": {nil, 2048},
		"version 2, no limit": {map[string]string{
			"proc/self/cgroup":             "0::/system.slice/kedge.service\n",
			"sys/fs/cgroup/memory.max":     "max\n",
			"sys/fs/cgroup/cgroup.procs":   "1\n",
			"sys/fs/cgroup/unrelated/file": "",
		}, 2048},
		"version 2, above": {map[string]string{
			"proc/self/cgroup":                                    "0::/small.slice/kedge.service\n",
			"sys/fs/cgroup/small.slice/memory.max":                "1024\n",
			"sys/fs/cgroup/small.slice/kedge.service/memory.max":  "max\n",
			"sys/fs/cgroup/small.slice/kedge.service/memory.high": "512\n",
		}, 1024},
		"version 2, in a container": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "1000\n",
		}, 1000},
		"version 1": {map[string]string{
			"proc/self/cgroup":                      "4:cpu,cpuacct:/a\n3:memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.stat":    "cache 1\nhierarchical_memory_limit 1536\n",
			"sys/fs/cgroup/memory/memory.stat":      "hierarchical_memory_limit 9223372036854771712\n",
			"sys/fs/cgroup/unified/cgroup.controll": "",
		}, 1536},
		"more than the machine has": {map[string]string{
			"proc/self/cgroup":                 "3:memory:/\n",
			"sys/fs/cgroup/memory/memory.stat": "hierarchical_memory_limit 9223372036854771712\n",
		}, 2048},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"proc/meminfo": "MemTotal: 2 kB\n"}
			for path, content := range test.files {
				files[path] = content
			}
			got, err := probe{root: tree(t, files)}.availableMemory()
			if err != nil || got != test.want {
				t.Errorf("got %d and %v, want %d", got, err, test.want)
			}
		})
	}
}
