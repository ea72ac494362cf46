package volume

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Project quotas, as in linux/quota.h and linux/dqblk_xfs.h. quotactl_fd(2) needs no name of the
// device, and is the same for ext4 and xfs.
//
// Quotas can be evaded on purpose: the owner of a file may assign it to another project
// (FS_IOC_FSSETXATTR) unless he is in a user namespace, and ext4 does not limit processes with
// CAP_SYS_RESOURCE. Images have no such gaps.
const (
	projectQuota = 2 // PRJQUOTA

	quotaGet   = 0x800007 // Q_GETQUOTA
	quotaSet   = 0x800008 // Q_SETQUOTA
	quotaState = 0x5805   // Q_XGETQSTAT

	projectAccounted = 1 << 4 // FS_QUOTA_PDQ_ACCT
	projectEnforced  = 1 << 5 // FS_QUOTA_PDQ_ENFD

	blockLimits = 1 // QIF_BLIMITS
	inodeLimits = 4 // QIF_ILIMITS

	// quotaBlock is the unit of limits (QIF_DQBLKSIZE).
	quotaBlock = 1024
	// inodeRatio is the number of bytes for each file, as in mkfs.ext4's defaults: a volume must
	// not use up the inodes of its disk.
	inodeRatio = 16384

	// firstProject is far from the numbers that people and other programs choose: those of
	// container runtimes and the kubelet begin at a million.
	firstProject = 0x6b640000
)

// limits is struct if_dqblk.
type limits struct {
	hardBlocks, softBlocks, usedBytes  uint64
	hardInodes, softInodes, usedInodes uint64
	blockTime, inodeTime               uint64
	valid                              uint32
	_                                  uint32
}

// quotas is struct fs_quota_stat.
type quotas struct {
	version int8
	flags   uint16
	_       [76]byte
}

// fileAttributes is struct fsxattr.
type fileAttributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

const (
	getAttributes  = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes  = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

func quotactl(base string, command, project uint32, argument unsafe.Pointer) error {
	folder, err := os.Open(base)
	if err != nil {
		return err
	}
	defer folder.Close()
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, folder.Fd(), uintptr(command<<8|projectQuota), uintptr(project), uintptr(argument), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// enforcesProjects tells whether the file system of base enforces project quotas, and does not only
// count.
func enforcesProjects(base string) bool {
	var state quotas
	const wanted = projectAccounted | projectEnforced
	return quotactl(base, quotaState, 0, unsafe.Pointer(&state)) == nil && state.flags&wanted == wanted
}

// quotaUsed returns how many bytes a project uses.
func quotaUsed(base string, project uint32) (int64, error) {
	var used limits
	if err := quotactl(base, quotaGet, project, unsafe.Pointer(&used)); err != nil {
		return 0, fmt.Errorf("read project quota: %w", err)
	}
	return int64(used.usedBytes), nil
}

// setQuota limits a project to size bytes. 0 removes the limit.
func setQuota(base string, project uint32, size int64) error {
	wanted := limits{hardBlocks: uint64(size / quotaBlock), hardInodes: uint64(size / inodeRatio), valid: blockLimits | inodeLimits}
	if err := quotactl(base, quotaSet, project, unsafe.Pointer(&wanted)); err != nil {
		return fmt.Errorf("set project quota: %w", err)
	}
	return nil
}

// setProject makes everything that will be created in folder count for a project.
func setProject(folder string, project uint32) error {
	file, err := os.Open(folder)
	if err != nil {
		return fmt.Errorf("set project: %w", err)
	}
	defer file.Close()
	var attributes fileAttributes
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), getAttributes, uintptr(unsafe.Pointer(&attributes)))
	if errno == 0 {
		attributes.flags |= projectInherit
		attributes.project = project
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, file.Fd(), setAttributes, uintptr(unsafe.Pointer(&attributes)))
	}
	if errno != 0 {
		return fmt.Errorf("set project of %s: %w", folder, errno)
	}
	return nil
}

// freeProject returns a project number that no volume of this node has and that is unused in the file
// system of base.
func (s *Store) freeProject(base string) (uint32, error) {
	volumes, err := s.List()
	if err != nil {
		return 0, err
	}
	taken := map[uint32]bool{}
	for _, v := range volumes {
		taken[v.Project] = true
	}
	for project := uint32(firstProject); ; project++ {
		if taken[project] {
			continue
		}
		// xfs returns ENOENT for a project that was never used.
		if used, err := quotaUsed(base, project); err != nil || used == 0 {
			return project, nil
		}
	}
}
