"""One transformer's layers in segments that several exits share.

``trunk`` has the ordinary :class:`~.trunk.Trunk` and the :class:`~.trunk.ExitModel` of its exits,
``slots`` what it caches of a sequence; ``cuda_graphs`` the trunk for accelerators, whose memory is
the ``arena``, and ``trunk_for``, which chooses between the two. ``self_draft`` drafts on the
target's own slots.
"""
